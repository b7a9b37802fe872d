"""The public Python API: `Federation`, `Model`, runs and imputation. Read this package first.

No module of this package starts another process.
"""
