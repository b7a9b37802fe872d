"""Schedules of the parties' optimizer steps: synchronous, Flex-VFL, VAFL, with a virtual or a real clock.

A schedule wraps a split method and computes no loss of its own.
"""
