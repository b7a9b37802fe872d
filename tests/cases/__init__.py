"""Tables and calls with mistakes that users report; each of the 31 kinds has a test class ``TestCaseNN...``.

The first inputs of each kind were given by users' reports. This table lists where further inputs of the kind are:

01 one class, spelled in two ways: test_tables.TestCase01, tables/test_label_cells
02 marks of missing labels: test_tables.TestCase02, tables/test_label_cells, tables/test_target
03 ids that are written differently: test_tables.TestCase03, alignment/test_join
04 rare classes: test_tables.TestCase04, data/test_splits, api/test_federation
05 spellings of categories: test_tables.TestCase05, tables/test_number_marks (spellings are listed and merged)
06 numbers with marks: test_tables.TestCase06, tables/test_number_marks, tables/test_written_otherwise
07 numbers as labels: test_tables.TestCase07, tables/test_target
08 arguments in Python: test_sentences.TestCase08, core/test_checked_calls, api/test_federation
09 files that are not tables: test_tables.TestCase09, tables/test_file_formats, tables/test_readers
10 other formats: test_tables.TestCase10, tables/test_file_formats, tables/test_written_otherwise
11 ids of several columns, and repeated ids: test_tables.TestCase11, tables/test_table
12 the epoch that is kept: test_training.TestCase12, training/test_epoch_choice
13 tables that the user edits: test_training.TestCase13, api/test_edited_tables
14 one label far from all others: test_sentences.TestCase14, tables/test_summary
15 probabilities of balanced training: test_training.TestCase15, api/test_calibrated
16 shares that are smaller than one row: test_training.TestCase16, data/test_splits
17 forked processes: test_training.test_case_17, api/test_forked
18 paths with ~ and other signs: test_training.TestCase18, api/test_home_folder
19 unclear sentences: test_sentences.TestCase19, config/test_config
20 ids of two types: test_ids.TestCase20
21 masked arrays: test_containers.TestCase21
22 times in training, dates at prediction: test_cells.TestCase22, tables/test_dates
23 rounded ids and numbers: test_ids.TestCase23, test_cells.TestCase23, serving/test_http_app
24 -1 among other labels: test_labels.TestCase24, tables/test_label_cells
25 ids that are written otherwise in a third: test_ids.TestCase25, alignment/test_overlap
26 booleans among numbers: test_cells.TestCase26, test_labels.TestCase27 (labels)
27 a feature that determines the label: test_labels.TestCase27
28 workbooks with formulas without values: test_workbooks.TestCase28
29 numbers in another notation: test_cells.TestCase29, tables/test_table
30 inputs of other libraries: test_containers.TestCase30
31 row numbers as ids: test_ids.TestCase31
"""
