from __future__ import annotations

import inspect
import signal
import types

import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.termination import FunctionWatcher, Platform, SlurmOptions, TerminationConfig


def _nothing():
    return False


def test_defaults_leave_the_choice_to_the_platform():
    config = TerminationConfig()
    assert config.termination_watcher_fn is None
    assert config.exit_fn is None
    assert config.grace_period is None
    assert config.save_fn is None
    assert config.signals is None
    assert config.slurm == SlurmOptions()
    assert config.watchers is None


def test_positional_arguments_are_tensorflows_in_its_order():
    config = TerminationConfig(_nothing, print, 30, repr)
    assert (config.termination_watcher_fn, config.exit_fn, config.grace_period, config.save_fn) == (
        _nothing,
        print,
        30,
        repr,
    )
    assert list(inspect.signature(TerminationConfig).parameters)[4:] == [
        "signals",
        "slurm",
        "watchers",
        "save_on_interrupt",
    ]
    with pytest.raises(TypeError):
        TerminationConfig(_nothing, print, 30, repr, ("SIGTERM",))


@pytest.mark.parametrize("name", ["termination_watcher_fn", "exit_fn", "save_fn"])
@pytest.mark.parametrize("value", [True, 42, "sys.exit"], ids=repr)
def test_something_else_than_a_function_is_refused(name, value):
    with pytest.raises(ConfigError) as caught:
        TerminationConfig(**{name: value})
    assert f"{name}={value!r}" in str(caught.value)
    assert "expected a function or None" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("value", [0, 0.5, 3600])
def test_grace_period_in_seconds(value):
    assert TerminationConfig(grace_period=value).grace_period == value


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "60", True, [60]], ids=repr)
def test_grace_period_that_is_no_number_of_seconds_is_refused(value):
    with pytest.raises(ConfigError) as caught:
        TerminationConfig(grace_period=value)
    assert f"grace_period={value!r}" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("signals", "parsed"),
    [
        ((), ()),
        (["SIGTERM", "SIGUSR1"], ("SIGTERM", "SIGUSR1")),
        ((signal.SIGUSR2,), ("SIGUSR2",)),
        (("SIGTERM", signal.SIGTERM), ("SIGTERM",)),
    ],
    ids=["none", "list", "member", "twice"],
)
def test_signals_are_kept_as_names(signals, parsed):
    assert TerminationConfig(signals=signals).signals == parsed


@pytest.mark.parametrize(
    ("signals", "message"),
    [
        ("SIGTERM", r"signals='SIGTERM'; expected a sequence(.|\n)*\('SIGTERM',\)"),
        ({"SIGTERM"}, "expected a sequence"),
        (("SIGTREM",), "'SIGTREM', which is not the name of a signal"),
        (("sigterm",), "'sigterm', which is not the name of a signal"),
        ((15,), "15, which is not the name of a signal"),
        (("SIGKILL",), "'SIGKILL', which no program can catch"),
        (("SIGTERM", "SIGSTOP"), "'SIGSTOP', which no program can catch"),
        (("SIGSEGV",), "'SIGSEGV', which reports a fault"),
    ],
)
def test_unusable_signals_are_refused(signals, message):
    with pytest.raises(ConfigError, match=message) as caught:
        TerminationConfig(signals=signals)
    assert caught.value.hint


def test_from_any_none_is_the_default():
    assert TerminationConfig.from_any(None) == TerminationConfig()


def test_from_any_passes_ours_through():
    config = TerminationConfig(grace_period=5)
    assert TerminationConfig.from_any(config) is config


def test_from_any_takes_an_object_with_tensorflows_attributes():
    theirs = types.SimpleNamespace(
        termination_watcher_fn=_nothing, exit_fn=print, grace_period=30, save_fn=repr, other=1
    )
    ours = TerminationConfig.from_any(theirs)
    assert ours == TerminationConfig(_nothing, print, 30, repr)
    assert ours.signals is None


def test_from_any_takes_tensorflows_own_object(run_script):
    result = run_script(
        "import tensorflow as tf\n"
        "from tf_preempt import TerminationConfig\n"
        "theirs = tf.distribute.experimental.TerminationConfig(exit_fn=print, grace_period=30)\n"
        "assert TerminationConfig.from_any(theirs) == TerminationConfig(exit_fn=print, grace_period=30)\n"
    )
    assert result.rc == 0, result.stderr


def test_from_any_validates_what_it_takes_over():
    theirs = types.SimpleNamespace(termination_watcher_fn=None, exit_fn=42, grace_period=None, save_fn=None)
    with pytest.raises(ConfigError, match="exit_fn=42"):
        TerminationConfig.from_any(theirs)


@pytest.mark.parametrize(
    "value",
    [60, "gce", {"grace_period": 60}, TerminationConfig, types.SimpleNamespace(exit_fn=print)],
    ids=repr,
)
def test_from_any_refuses_the_rest(value):
    with pytest.raises(ConfigError, match="termination_config=") as caught:
        TerminationConfig.from_any(value)
    assert type(value).__name__ in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("platform", "signals"),
    [
        ("local", ("SIGTERM",)),
        ("gce", ("SIGTERM",)),
        ("aws", ("SIGTERM",)),
        ("azure", ("SIGTERM",)),
        ("kubernetes", ("SIGTERM",)),
        ("agent_platform", ("SIGTERM",)),
        ("slurm", ("SIGTERM", "SIGUSR1", "SIGUSR2")),
        (Platform.SLURM, ("SIGTERM", "SIGUSR1", "SIGUSR2")),
    ],
)
def test_for_platform_says_what_is_used_there(platform, signals):
    assert TerminationConfig.for_platform(platform) == TerminationConfig(signals=signals)


def test_for_platform_knows_every_platform():
    assert {TerminationConfig.for_platform(platform).signals[0] for platform in Platform} == {"SIGTERM"}


def test_for_platform_takes_changes():
    options = SlurmOptions(requeue="never")
    config = TerminationConfig.for_platform("slurm", grace_period=30, slurm=options, exit_fn=print)
    assert (config.grace_period, config.slurm, config.exit_fn) == (30, options, print)
    assert config.signals == ("SIGTERM", "SIGUSR1", "SIGUSR2")
    assert TerminationConfig.for_platform("slurm", signals=("SIGUSR1",)).signals == ("SIGUSR1",)
    assert TerminationConfig.for_platform("slurm", signals=None) == TerminationConfig()


@pytest.mark.parametrize("platform", ["Slurm", "ibm", "", None], ids=repr)
def test_for_platform_refuses_one_that_is_not_known(platform):
    with pytest.raises(ConfigError, match="expected one of local, slurm, gce") as caught:
        TerminationConfig.for_platform(platform)
    assert f"platform={str(platform)!r}" in str(caught.value)
    assert caught.value.hint


def test_for_platform_refuses_a_change_that_cannot_be_used():
    with pytest.raises(ConfigError, match="grace_period=-1"):
        TerminationConfig.for_platform("local", grace_period=-1)


def test_slurms_options_are_kept():
    options = SlurmOptions(max_requeues=3)
    assert TerminationConfig(slurm=options).slurm is options


@pytest.mark.parametrize(
    "value",
    [None, "never", {"requeue": "never"}, SlurmOptions, types.SimpleNamespace(requeue="never")],
    ids=repr,
)
def test_other_options_for_slurm_are_refused(value):
    with pytest.raises(ConfigError) as caught:
        TerminationConfig(slurm=value)
    assert f"slurm={value!r}; expected a tf_preempt.termination.SlurmOptions" in str(caught.value)
    assert caught.value.hint


def test_watchers_are_kept_in_order():
    first, second = FunctionWatcher(_nothing), FunctionWatcher(_nothing)
    assert TerminationConfig(watchers=[first, second]).watchers == (first, second)
    assert TerminationConfig(watchers=()).watchers == ()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (FunctionWatcher(_nothing), "FunctionWatcher"),
        ("aws", "str"),
        ([FunctionWatcher(_nothing), "aws"], "str"),
        ([FunctionWatcher], "ABCMeta"),
        ([_nothing], "function"),
        ({FunctionWatcher(_nothing)}, "set"),
        (7, "int"),
    ],
)
def test_what_is_no_sequence_of_watchers_is_refused(value, found):
    with pytest.raises(ConfigError) as caught:
        TerminationConfig(watchers=value)
    assert f"watchers={value!r}; expected a sequence of TerminationWatcher objects" in str(caught.value)
    assert f"found a {found}" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(("source", "is_one"), [("SIGINT", True), ("SIGTERM", False)])
def test_ctrl_c_is_an_interrupt_only_where_it_is_to_save(source, is_one):
    assert TerminationConfig(save_on_interrupt=True).is_interrupt(source) is is_one
    assert not TerminationConfig(signals=("SIGINT",)).is_interrupt(source)


@pytest.mark.parametrize("value", [None, 1, "yes"], ids=repr)
def test_what_is_no_truth_value_is_refused(value):
    with pytest.raises(ConfigError, match=r"save_on_interrupt=.*expected True or False") as caught:
        TerminationConfig(save_on_interrupt=value)
    assert caught.value.hint
