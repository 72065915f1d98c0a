"""What reads spin's output tells what holds from what is violated, and from a search that says too little."""

from __future__ import annotations

import pytest

from tests.model.run import HOLDS, PROPERTIES, VARIANTS, Finding, Variant, complaint, read

WHOLE = """
(Spin Version 6.5.2 -- 6 December 2019)
State-vector 140 byte, depth reached 1012, errors: 0
  2319673 states, stored
 20000000 transitions (= stored+matched)
unreached in proctype Clock
\tlease.pml:573, state 40, "-end-"
\t(1 of 40 states)

pan: elapsed time 45.2 seconds
"""
VIOLATED = WHOLE.replace("errors: 0", "errors: 1").replace(
    "(Spin", "pan:1: assertion violated bodies_apart (at depth 97)\npan: wrote lease.pml.trail\n(Spin"
)
DESIGNED = Variant("as designed", (), None)
BROKEN = Variant("NO_GRACE", ("NO_GRACE",), "bodies_apart")


def test_search_without_an_error_holds() -> None:
    """A whole search without an error holds, with its figures."""
    assert read(WHOLE) == Finding(HOLDS, (), 2319673, 45.2)
    assert complaint(DESIGNED, read(WHOLE)) is None


def test_many_states_are_read_in_spins_short_form() -> None:
    """A number that spin writes with an exponent is read as the number that it is."""
    assert read(WHOLE.replace("  2319673", "1.0737e+07")).states == 10_737_000


def test_search_that_violates_names_the_property() -> None:
    """What is found is the property of the assertion that failed, and nothing else will do for it."""
    assert read(VIOLATED).found == "bodies_apart"
    assert complaint(BROKEN, read(VIOLATED)) is None
    assert complaint(BROKEN, read(VIOLATED.replace("bodies_apart", "fences_rise"))) is not None
    assert complaint(BROKEN, read(WHOLE)) is not None
    assert complaint(DESIGNED, read(VIOLATED)) is not None


def test_other_error_of_a_search_is_no_property() -> None:
    """A state in which nothing can go on is told in spin's words."""
    assert read(VIOLATED.replace("assertion violated bodies_apart", "invalid end state")).found == "invalid end state"


@pytest.mark.parametrize(
    "said",
    [
        "error: max search depth too small\n",
        "Warning: Search not completed\n",
        "pan: reached -DMEMLIM bound\nout of memory\n",
        '\tlease.pml:300, state 12, "row.left = 3"\n',
    ],
)
def test_search_that_is_not_complete_is_no_proof(said: str) -> None:
    """A search that was cut short, or that a part of the model was out of reach for, does not hold."""
    assert complaint(DESIGNED, read(f"{said}{WHOLE}")) is not None


def test_search_that_ended_without_a_result_is_an_error() -> None:
    """A program that printed no result found nothing."""
    with pytest.raises(ValueError, match="did not come to its end"):
        read("Segmentation fault\n")


def test_variants_violate_every_property_and_check_it_alone() -> None:
    """Each property has a variant that violates it, so none of them is one that cannot fail."""
    assert {variant.violates for variant in VARIANTS} == {None, *PROPERTIES}
    assert BROKEN.options == ["-DNO_GRACE", "-DONLY=3"]
    assert DESIGNED.options == []
