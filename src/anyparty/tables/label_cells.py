"""Read the cells of a label column: recognize marks of missing labels, and merge spellings of one class.

Two spellings are one class if they differ in case, surrounding or repeated spaces, invisible or compatibility
characters, the composed or decomposed form of Unicode, or in how a whole number is written. Spellings that may be two
classes are not merged. ``check_classes`` rejects them with an error that lists the settings for such spellings.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import polars as pl

from anyparty.errors import TableError, remark, some
from anyparty.tables import cells
from anyparty.tables.cells import NO, VOCABULARIES, YES, counted, fold, listed, tidy
from anyparty.tables.cells import key as toml_key
from anyparty.tables.column_types import FEW_LEVELS, marks_note, stop_at_limits
from anyparty.tables.reading_rules import NumberFormat, ReadingRules, with_format, without_limits, without_marks

MARKS = frozenset((*cells.MISSING, "-", "\u2013", "\u2014", ".", "*", "\\N"))  # texts for a missing label
WHOLE = re.compile(r"[+-]?(0|[1-9]\d*)(\.0*)?([eE][+-]?\d{1,2})?|[+-]?[1-9]\.\d+[eE]\+?\d{1,2}")
SPELLED = 1000  # spellings are merged only in columns with at most this many distinct texts
LETTERS = {"t", "f", "y", "n", "j"}  # letters that mean yes or no
WORDS = """
    (none) none na n.a. n.a n/k n.k. unknown unk unk. (unknown) missing (missing) (blank) blank undefined nil void
    unspecified not_known not_available not_applicable not_recorded not_reported no_answer no_data refused tbd
    #null! #value! #ref! #div/0! #name? #num! error -- --- .. ... ?? ??? _ /
"""
MAY_BE_MISSING = frozenset(WORDS.split())
_LOOKALIKES = str.maketrans(cells.ALIKE | dict.fromkeys("‘’‚`´", "'") | dict.fromkeys("“”„", '"'))
SMALL = 5  # a class such as "unknown" is rare if it has at most 1 / SMALL of the labels


def class_key(text: str) -> str:
    """Return the form that all spellings of a class share. Whole numbers get plain digits.

    >>> [class_key(text) for text in ("1.00", "1e0", "TRUE", "Yes ", "01", "1.5")]
    ['1', '1', 'true', 'yes', '01', '1.5']
    """
    folded = fold(text)
    if WHOLE.fullmatch(folded):
        number = float(folded)
        if number.is_integer() and abs(number) <= 2**53:
            return str(int(number))
    return folded


class Labels(NamedTuple):
    """The labels of one party, as they were read.

    Attributes:
        cells: [n] the labels, null if missing; ``None`` if the party holds no labels.
        notes: sentences on spellings that were merged, and on cells that were read as missing.
        format: the format of numbers with marks, such as 39.4%; ``None`` for other labels.
    """

    cells: pl.Series | None
    notes: tuple[str, ...] = ()
    format: NumberFormat | None = None


def read_labels(column: pl.Series, where: str, rules: ReadingRules, *, trained: bool = False) -> Labels:
    """Return a label column read as classes or numbers.

    Numbers keep their type. Numbers with marks, such as 39.4%, are read as Float64 if more than 20 of them differ, or
    if ``rules.task`` is "regression". Labels become Categorical if ``rules.classes`` declares their classes.

    Args:
        column: the cells as in the file, [n].
        where: party and file, the beginning of a sentence.
        rules: the rules by which the party's cells are read.
        trained: whether a trained model fixes the format of numbers.

    Raises:
        TableError: a label is not in ``rules.classes``, or is a limit such as <25 among numbers.
    """
    column, notes = _without_missing(column, where, rules)
    if rules.classes is not None:
        return Labels(_declared(column, rules.classes, where), notes)
    if not cells.is_text(column):
        return Labels(column, notes)
    if (read := _marked_numbers(column, where, rules, trained=trained)) is not None:
        return read._replace(notes=notes + read.notes)
    if cells.is_category(column):
        return Labels(cells.as_level(column).cast(pl.Categorical), notes)  # the type means declared classes
    counts = cells.value_counts(column.drop_nulls())
    if len(counts) > SPELLED:
        return Labels(cells.as_level(column), notes)
    names = _names(dict(counts))
    merged = pl.Series(list(names), dtype=pl.String), pl.Series(list(names.values()), dtype=pl.String)
    labels = column.replace_strict(*merged, default=None, return_dtype=pl.String)
    merges = len(set(names.values())) < len(names)
    return Labels(labels, notes + _merged(names, counts, where) if merges else notes)


def _marked_numbers(column: pl.Series, where: str, rules: ReadingRules, *, trained: bool) -> Labels | None:
    """Return labels that are numbers with marks, such as 39.4%; ``None`` for classes and plain numbers."""
    known = rules.formats.get(column.name) if trained else None
    if rules.task == "classification" or cells.is_category(column) or (trained and known is None):
        return None
    if known is None and rules.task == "auto" and column.n_unique() <= FEW_LEVELS:
        return None
    if not cells.as_numbers(column)[1].any() and known is None:
        return None
    where = f"{where}: label column {column.name!r}"
    text, limits = without_limits(cells.as_level(column), rules.limits.get(column.name))
    read = with_format(text, known) if known else without_marks(text, rules.decimal)
    if known is None and rules.task == "auto" and read.numbers.n_unique() <= FEW_LEVELS:
        return None
    limited = read.bad & limits
    if limited.any() and 2 * (len(text) - int(read.bad.sum())) >= len(text) and not (read.bad & ~limits).any():
        stop_at_limits(column, limited, where)
    if read.bad.any() and known is None:
        return None
    if read.bad.any():
        raise TableError(
            f"{where} has cells that are not numbers: {cells.cited(column, read.bad)}. The model was trained on "
            f"numbers there: correct them, or leave them empty"
        )
    note = "" if known else marks_note(column, read.numbers, where, 'set federation.task = "classification"')
    return Labels(read.numbers, (note,) if note else (), read.format)


def _without_missing(column: pl.Series, where: str, rules: ReadingRules) -> tuple[pl.Series, tuple[str, ...]]:
    """Replace marks of missing labels by null, and return the labels and notes."""
    if column.dtype.is_float():
        column = column.fill_nan(None)
    declared = {class_key(text) for text in rules.missing.get(column.name, ())}
    if not cells.is_text(column):
        if not declared:
            return column, ()
        marked = cells.as_level(column).is_in(list(declared))
        note = _marked(cells.value_counts(cells.as_level(column.filter(marked))), len(column), column.name, where)
        return column.set(marked.fill_null(value=False), None), note
    category, text = cells.is_category(column), column.cast(pl.String)
    classes = {class_key(text) for texts in (rules.classes or {}).values() for text in texts}
    found = cells.value_counts(text.drop_nulls())
    signs = {"-", "\u2013", "\u2014"} if any(tidy(each) == "+" for each, _ in found[:SPELLED]) else set()
    marks = [
        (each, count)
        for each, count in found
        if class_key(each) in declared or (tidy(each) in MARKS - signs and class_key(each) not in classes)
    ]
    if not marks:
        return column, ()
    kept = text.set(text.is_in([each for each, _ in marks]).fill_null(value=False), None)
    written = [(each.strip(), count) for each, count in marks if each.strip()]
    return kept.cast(pl.Categorical) if category else kept, _marked(written, len(column), column.name, where)


def _marked(marks: list[tuple[str, int]], n: int, name: str, where: str) -> tuple[str, ...]:
    if not marks:
        return ()
    count = sum(rows for _, rows in marks)
    note = (
        f"{where}: {count:,} of {n:,} cells of label column {name!r} are {counted(marks)}, which stands for missing: "
        f"these rows are unlabelled. If it is a class, list all classes, federation.classes = [...]"
    )
    return (note,)


def _declared(column: pl.Series, classes: Mapping[str, tuple[str, ...]], where: str) -> pl.Series:
    """Replace each label by the class whose texts in the setting ``classes`` include the label.

    Texts are compared first as written, then without regard to spelling.
    """
    of = {class_key(text): name for name, texts in classes.items() for text in texts}
    of |= {tidy(text): name for name, texts in classes.items() for text in texts}
    text = column.cast(pl.String) if cells.is_text(column) else cells.as_level(column)
    counts = cells.value_counts(text.drop_nulls())
    names = {each: of.get(tidy(each), of.get(class_key(each))) for each, _ in counts}
    if other := [(each, count) for each, count in counts if names[each] is None]:
        bad = text.is_in([each for each, _ in other])
        raise TableError(
            f"{where}: label column {column.name!r} has {counted(other)}, which federation.classes does not list "
            f"({cells.cited(text, bad)}); its classes are {some(classes, 20)}: add the text to one of them, or write "
            f"{cells.party_setting(where, 'missing', column.name, [each for each, _ in other])}"
        )
    texts, found = pl.Series(list(names), dtype=pl.String), pl.Series(list(names.values()), dtype=pl.String)
    return text.replace_strict(texts, found, default=None, return_dtype=pl.String).cast(pl.Categorical)


def _names(counts: Mapping[str, int]) -> dict[str, str]:
    """Return the class of each text: the most frequent spelling, or the plain form of a number or boolean."""
    keys = {text: class_key(text) for text in counts}
    alone = set(keys.values()) if len(set(keys.values())) == 1 else set()
    if len({tidy(text) for text in counts}) > 1 and any(not WHOLE.fullmatch(key) for key in alone):
        return {text: tidy(text) for text in counts}  # labels that differ only in case, such as a and A
    spellings: dict[str, dict[str, int]] = {}
    for text, count in counts.items():
        written = spellings.setdefault(keys[text], {})
        written[tidy(text)] = written.get(tidy(text), 0) + count
    names = {key: min((-count, text) for text, count in written.items())[1] for key, written in spellings.items()}
    plain = {key for key in names if WHOLE.fullmatch(key) or key in {"true", "false"}}
    letters = {key for key in names if len(key) == 1 and key.isalpha() and key not in LETTERS}
    return {
        text: key if key in plain else tidy(text) if key in letters else names[key]
        for text, key in keys.items()
    }  # fmt: skip


def _merged(names: Mapping[str, str], counts: list[tuple[str, int]], where: str) -> tuple[str, ...]:
    """Return a note on spellings that were merged into one class."""
    spelled: dict[str, dict[str, int]] = {}
    for text, count in counts:
        spelled.setdefault(names[text], {})[text] = count
    several = {name: of for name, of in spelled.items() if len({text.strip(" ") for text in of}) > 1}
    if not several:
        return ()
    each = "; ".join(f"{counted(of.items())} as {name!r}" for name, of in sorted(several.items()))
    return (f"{where}: spellings of one class are read as one: {each}",)


def names_of(label: pl.Series) -> pl.Series:
    """Return the classes of labels [n] as text, null if missing."""
    return label.cast(pl.String) if label.dtype == pl.Categorical else cells.as_level(label)


def check_classes(label: pl.Series, where: str) -> None:
    """Check that each class of the labels [n] has one spelling, and that no class seems to mark missing labels.

    Raises:
        TableError: two classes may be one, or a rare class may mark missing labels.

    Warns:
        AnypartyWarning: a frequent class may mark missing labels.
    """
    if cells.is_category(label):
        return
    names = cells.as_level(label)
    counts = dict(cells.value_counts(names.drop_nulls()))
    if len(counts) > SPELLED:
        return
    problem, odd = _alike(counts) or _truths_among_numbers(counts) or _mixture(counts)
    if problem:
        raise TableError(f"{where}: {problem} ({cells.cited(names, names == odd)})")
    for name, rare in _suspicious(counts):
        others = [other for other in sorted(counts) if other != name]
        sentence = (
            f"{where}: {name!r} in {counts[name]:,} of {sum(counts.values()):,} labels beside {some(others, 5)} may "
            f"stand for a missing label ({cells.cited(names, names == name)}): if it does, write "
            f"{cells.party_setting(where, 'missing', label.name, [name])}; if it is a class, write "
            f"federation.classes = {listed(sorted(counts))}"
        )
        if rare:
            raise TableError(sentence)
        remark(f"{sentence}. It is read as a class")


def _alike(counts: Mapping[str, int]) -> tuple[str, str] | None:
    """Return a sentence on two classes that may be one class, and the rarer of the two, or ``None``."""
    seen: dict[object, str] = {}
    for name in sorted(counts):
        key: object = _without_punctuation(name)
        with suppress(ValueError):
            key = float(str(key))
        if key in seen:
            pair = [(seen[key], counts[seen[key]]), (name, counts[name])]
            sentence = (
                f"{counted(pair)} may be one class or two: write federation.classes = {{{toml_key(seen[key])} = "
                f"{listed([seen[key], name])}, ...}} for one, or federation.classes = {listed(sorted(counts))} "
                f"for two{_foreign_letter(seen[key], name)}"
            )
            return sentence, min(pair, key=lambda each: each[1])[0]
        seen[key] = name
    return None


def _without_punctuation(text: str) -> str:
    """Return a simplified class name; two class names with equal results may be one class.

    The result is in lower case, without quotation marks around it and without punctuation at its end. Latin letters
    replace similar letters of other alphabets, a decimal point replaces a decimal comma, and a space replaces a hyphen,
    underscore or slash between letters or digits.

    >>> [_without_punctuation(text) for text in ("'yes'", "good.", "not_paid", "STRASSE", "1,0", ">50K.", "-1")]
    ['yes', 'good', 'not paid', 'strasse', '1.0', '>50k', '-1']
    """
    plain = fold(text).casefold().translate(_LOOKALIKES)
    plain = re.sub(r"^(['\"])(.*)\1$", r"\2", plain)
    plain = re.sub(r"(?<=\w)[.,;:]$", "", plain.strip())
    plain = re.sub(r"^([+-]?\d+),(\d+)$", r"\1.\2", plain)
    return " ".join(re.sub(r"(?<=\w)[-_/\u2010\u2011](?=\w)", " ", plain).split())


def _foreign_letter(*names: str) -> str:
    """Return a sentence on a letter that looks like a Latin letter, and is in only one of the texts."""
    for letter in sorted(set(names[0]) ^ set(names[1])):
        if letter.isalpha() and letter.casefold() in cells.ALIKE:
            return f". {unicodedata.name(letter)} looks like a letter of another alphabet"
    return ""


def _truths_among_numbers(counts: Mapping[str, int]) -> tuple[str, str] | None:
    """Return a sentence on true or false beside numbers other than 0 and 1, and such a label, or ``None``."""
    words = [name for name in counts if name in {"true", "false"}]
    numbers = [name for name in counts if _number(name) is not None]
    if not words or len(words) + len(numbers) < len(counts) or {*numbers} <= {"0", "1"}:
        return None
    sentence = (
        f"the labels {counted(sorted(counts.items()))} mix truth values and numbers: correct them, or write "
        f"federation.classes = {listed(sorted(counts))} if each is a class"
    )
    return sentence, words[0]


def _mixture(counts: Mapping[str, int]) -> tuple[str, str]:
    """Return an error text for labels with several words for yes and no, and the rarest label.

    For other labels, both results are "".
    """
    if len(counts) < 3 and not any(len(set(counts) & pair) > 1 for pair in (YES, NO)):
        return "", ""
    folded = {fold(name) for name in counts}
    used = [words for words in VOCABULARIES if words & folded]
    if len(used) < 2 or not folded <= set().union(*VOCABULARIES):
        return "", ""
    yes, no = ([name for name in sorted(counts) if fold(name) in words] for words in (YES, NO))
    sentence = (
        f"the labels {counted(sorted(counts.items()))} mix several ways to write yes and no: write "
        f"federation.classes = {{yes = {listed(yes)}, no = {listed(no)}}} if this is what they mean"
    )
    return sentence, min(sorted(counts), key=lambda name: counts[name])


def _suspicious(counts: Mapping[str, int]) -> Iterator[tuple[str, bool]]:
    """Yield each class that may mark missing labels, and whether the class is rare."""
    total = sum(counts.values())
    for name, count in counts.items():
        others = [other for other in counts if other != name]
        rare = SMALL * count <= total and len(others) >= 2
        odd = len(others) >= 2 and _is_odd_number(name, others)
        if rare and (odd or _is_odd_word(name, others)):
            yield name, True
        elif may_be_missing(name) or (odd and re.fullmatch(r"-\d+|9+|8+|7+", name)):
            yield name, False


def may_be_missing(text: str) -> bool:
    """Return whether a text is a word for missing, such as unknown or refused."""
    return fold(text).replace(" ", "_") in MAY_BE_MISSING


def _is_odd_word(name: str, others: list[str]) -> bool:
    """Return whether a class is a word for missing, or a word while all other classes are numbers."""
    if may_be_missing(name):
        return True
    return _number(name) is None and all(_number(other) is not None for other in others)


def _is_odd_number(name: str, others: list[str]) -> bool:
    """Return whether a class is an unusual number, such as 99 among small numbers or a number among words."""
    number = _number(name)
    if number is None:
        return False
    numbers = [found for other in others if (found := _number(other)) is not None]
    if not numbers:
        return bool(re.fullmatch(r"-\d+|9+|8+|7+", name))
    if len(numbers) < len(others):  # among words, a single 9 may be a class
        return bool(re.fullmatch(r"-\d+|99+|88+|77+", name))
    if number < 0 <= min(numbers):
        return True
    gap = min(abs(number - other) for other in numbers)
    return bool(re.fullmatch(r"-?(9+|8+|7+)", name)) and gap > max(1.0, max(numbers) - min(numbers))


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[+-]?\d+(\.\d+)?", text) else None
