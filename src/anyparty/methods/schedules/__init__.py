"""Schedules of the parties' optimizer steps (synchronous, Flex-VFL, VAFL), with a virtual or a real clock.

A schedule decides when the parties of a split method take steps. The split method computes the loss.
"""
