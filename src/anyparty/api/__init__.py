"""What users import: `Federation`, `Model`, runs and imputation. Start reading here.

Nothing here starts another process.
"""
