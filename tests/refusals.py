"""Tables of calls that are refused, each with an error of a type that names an argument."""

import pytest


def refused(*rows, given=tuple):
    """A test of each row (call, error, name): the call, with what `given()` returns, raises an error that names it."""

    @pytest.mark.parametrize(("call", "error", "name"), rows)
    def test(call, error, name):
        with pytest.raises(error, match=rf"\b{name}\b" if name.isidentifier() else name):
            call(*given())

    return test
