"""A party's part at its own site: what it allows, how it trains and predicts, which alignment it stores.

Nothing here reads another party's files.
"""
