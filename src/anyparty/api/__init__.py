"""The public Python API: `Federation`, `Model`, runs and imputation. Start reading here.

No module of this package starts another process.
"""
