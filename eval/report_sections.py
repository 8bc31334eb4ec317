"""The evaluation report in its order: what users see first, then what lies beneath."""

from hypic.eval import report_insides, report_outcomes
from hypic.eval.report_inputs import Folder
from hypic.eval.report_parts import Section


def all_sections(folder: Folder) -> list[Section]:
    """Every chapter, filled or saying what is missing."""
    return [chapter.section(folder) for chapter in (*report_outcomes.CHAPTERS, *report_insides.CHAPTERS)]
