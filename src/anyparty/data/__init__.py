"""What methods compute with: blocks, masks, batches, the task, missingness mechanisms and public data sets.

Nothing here knows a method, a message or a settings file.
"""
