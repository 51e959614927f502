"""Words that people give to folders and labels and that name no class: one rule for all that is read."""

from __future__ import annotations

import re
import unicodedata

_UNLABELLED = frozenset({"unlabelled", "unlabeled"})
_NO_LABEL = frozenset(
    {
        "unlabelled",
        "unlabeled",
        "notlabelled",
        "notlabeled",
        "nonlabelled",
        "nonlabeled",
        "nolabel",
        "nolabels",
    }
    | {"withoutlabel", "withoutlabels", "tolabel", "tobelabelled", "tobelabeled", "unannotated", "unassigned"}
    | {"unknown", "unidentified", "unsorted", "tosort", "tobesorted", "unclassified", "notclassified"}
    | {"uncategorised", "uncategorized", "unspecified", "undefined", "untagged"}
    | {"unbekannt", "unsortiert", "ungelabelt", "desconocido", "sinclasificar", "sinetiqueta", "nonclassé"}
    | {"未知", "未分类", "未分類", "未标注", "неизвестно"}
)
_NO_VALUE = frozenset({"none", "null", "nan", "na", "n/a", "#n/a", "<na>", "todo", "tbd"})
_LABELLED = frozenset({"labelled", "labeled"})
_PARTS = frozenset(
    {"train", "training", "trainval", "trn", "test", "testing", "tst", "val", "valid", "validation", "dev"}
    | {"eval", "evaluation", "holdout", "heldout", "fold", "split"}
)
_PHOTOS = frozenset(
    {
        "image",
        "images",
        "img",
        "imgs",
        "photo",
        "photos",
        "picture",
        "pictures",
        "pic",
        "pics",
        "foto",
        "fotos",
    }
    | {
        "bilder",
        "jpg",
        "jpgs",
        "jpeg",
        "jpegs",
        "jpegimages",
        "png",
        "pngs",
        "dcim",
        "data",
        "dataset",
        "datasets",
    }
    | {"file", "files", "raw", "input", "inputs", "all", "allimages", "imagefolder"}
)
_MORE = re.compile(r"(images?|imgs?|photos?|pictures?|pics?|files?|data|dataset|samples?|set|folder)$")
_DATE = re.compile(r"(19|20)\d\d([-_. ]?\d\d?){0,2}|\d{3}[A-Z0-9_]{5}|(19|20)\d{6}")
_NEAR = re.compile(r"(un|not?|non)lab")


def fold(word: str) -> str:
    """``word`` without what people vary: case, Unicode form, blanks, underscores and hyphens."""
    text = unicodedata.normalize("NFKC", word).casefold()
    return "".join(
        letter
        for letter in text
        if not letter.isspace() and letter != "_" and unicodedata.category(letter) not in ("Pd", "Cf", "Cc")
    )


def means_no_label(word: str) -> bool:
    """Whether a folder or a label of this name says that there is no label: unlabelled, unknown, n/a, ? and more."""
    folded = fold(word)
    return folded in _NO_VALUE or _bare(folded) in _NO_LABEL or set(folded) <= {"?"}


def says_unlabelled(word: str) -> bool:
    """Whether it does so by the documented word, which nobody takes for a class."""
    return fold(word) in _UNLABELLED


def nearly_unlabelled(word: str) -> bool:
    """Whether a name that is a class begins as the documented word does, as 'unlabled' and 'unlabelled old' do."""
    return not means_no_label(word) and _NEAR.match(fold(word)) is not None


def means_labelled(word: str) -> bool:
    """Whether a folder of this name holds the class folders beside an unlabelled one."""
    return _bare(fold(word)) in _LABELLED


def means_part(word: str) -> bool:
    """Whether a folder of this name is a part of a data set that was cut for training and testing."""
    return _bare(fold(word).rstrip("0123456789")) in _PARTS


def means_photos(word: str) -> bool:
    """Whether a folder of this name holds photos of anything: images, photos, data, DCIM."""
    return fold(word) in _PHOTOS


def means_date(word: str) -> bool:
    """Whether it is a year, a date or a folder of a camera, 100CANON."""
    return _DATE.fullmatch(word.strip()) is not None


def _bare(folded: str) -> str:
    """Without a last word that adds nothing: 'testset', 'unlabelledimages'."""
    if folded in _PARTS or folded in _NO_LABEL or folded in _LABELLED:
        return folded
    return _MORE.sub("", folded)
