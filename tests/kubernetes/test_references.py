"""The kubelet's `$(NAME)`, and texts that mean the same on a cluster as on a laptop."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.pods.container_task import kubelet_expand, literal, spelled
from flowsched.cluster.node.environment import expand

ENV = {"VAR_A": "A", "VAR_B": "B", "VAR_C": "C", "VAR_REF": "$(VAR_A)", "VAR_EMPTY": ""}
#: Texts full of what expansion looks at.
texts = st.text(st.sampled_from(list("$()AB_x \n\"'é")), max_size=24) | st.lists(
    st.sampled_from(
        ["$(VAR_A)", "$$", "$", "$(", ")", "$(id -u)", "$$(VAR_A)", "$(KUBERNETES_SERVICE_HOST)", "$(S)", "x"]
    ),
    max_size=8,
).map("".join)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(VAR_A)", "A"),
        ("___$(VAR_B)___", "___B___"),
        ("$(VAR_A)-$(VAR_B)$(VAR_C)", "A-BC"),
        ("$(VAR_REF)", "$(VAR_A)"),
        ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
        ("foo$(VAR_EMPTY)bar", "foobar"),
        ("foo_$$(VAR_A)_bar", "foo_$(VAR_A)_bar"),
        ("--$$$(VAR_A)--", "--$A--"),
        ("----$$$$(VAR_A)----", "----$$(VAR_A)----"),
        ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
        ("$$$$$(VAR_A)$$$$", "$$A$$"),
        ("f000-$VAR_A", "f000-$VAR_A"),
        ("foo\\$(VAR_C)bar", "foo\\Cbar"),
        ("foo$$$(VAR_B))", "foo$B)"),
        ("--$(VAR_Z)--", "--$(VAR_Z)--"),
        ("$(VAR_A$(VAR_B", "$(VAR_A$(VAR_B"),
        ("$(VAR_B_$(DNE$", "$(VAR_B_$(DNE$"),
        ("$(VAR_A))", "A)"),
        ("$", "$"),
        ("$()", "$()"),
        ("$$", "$"),
        ("$a$é", "$a$é"),
        ("$(echo $(VAR_A))", "$(echo $(VAR_A))"),
    ],
)
def test_what_a_kubelet_expands(text: str, expanded: str) -> None:
    """As the kubelet's own code does."""
    assert kubelet_expand(text, ENV) == expanded


@given(texts)
def test_a_literal_arrives_as_it_is(text: str) -> None:
    """Values of variables are not expanded on a local cluster: so they must not be in a pod."""
    assert kubelet_expand(literal(text), ENV | {"": "!", "id -u": "!", "B": "!"}) == text


@given(texts)
@example("x=$(cat $(VAR_A))")
@example("kill $$")
@example("$$$(VAR_A)")
def test_an_argument_means_what_it_means_locally(text: str) -> None:
    """Secrets and the variables of the API server's Service, which only the kubelet knows, are not expanded."""
    seen_by_kubelet = {**ENV, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "S": "a secret"}
    assert kubelet_expand(spelled(text, ENV, hidden=("S",)), seen_by_kubelet) == expand(text, ENV)


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "align",
        "$(VAR_A)/x",
        "--out=$(VAR_A).$(VAR_B)",
        "$$(VAR_A)",
        "echo $HOME ${X} $1 `id` $(id -u) $(hostname)",
        'set -e\nfor f in $(cat "$MANIFEST"); do wc -l "$f"; done',
    ],
)
def test_ordinary_commands_are_sent_verbatim(argument: str) -> None:
    """Nobody who reads the pod is surprised."""
    assert spelled(argument, ENV, hidden=("S",)) == argument


@pytest.mark.parametrize(
    ("argument", "spelling"),
    [
        ("kill $$", "kill $$$$"),
        ("x=$(cat $(VAR_A))", "x=$$(cat $(VAR_A))"),
        ("$(S)", "$$(S)"),
        ("$(KUBERNETES_PORT) $(VAR_A)", "$(KUBERNETES_PORT) $(VAR_A)"),
    ],
)
def test_where_a_kubelet_would_do_something_else(argument: str, spelling: str) -> None:
    """A shell's own process, a reference inside of a shell's, a secret on the command line."""
    assert spelled(argument, ENV, hidden=("S",)) == spelling.replace("$(KUB", "$$(KUB")
