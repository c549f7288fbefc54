"""TF_CONFIG, right and wrong."""

import json

import pytest

from tf_preempt.cluster_resolvers import TFConfigClusterResolver
from tf_preempt.errors import ClusterConfigError

TWO = {"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 1}}


def resolver(value, **arguments):
    text = value if isinstance(value, str) else json.dumps(value)
    return TFConfigClusterResolver(environ={"TF_CONFIG": text}, **arguments)


def with_cluster(jobs):
    return {**TWO, "cluster": jobs}


def with_task(**task):
    return {**TWO, "task": task}


@pytest.mark.parametrize("environ", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": " \n"}, {"TF_CONFIG": "{}"}])
def test_nothing_set_is_a_single_worker_as_in_tensorflow(environ):
    alone = TFConfigClusterResolver(environ=environ)
    assert alone.cluster_spec().as_dict() == {}
    assert alone.get_task_info() == (None, None)
    assert alone.master() == ""


def test_reads_cluster_and_task():
    two = resolver(TWO)
    assert two.cluster_spec().as_dict() == TWO["cluster"]
    assert (two.task_type, two.task_id) == ("worker", 1)
    assert two.master() == "host1:12345"


def test_the_cluster_is_read_anew_at_each_call():
    environ = {"TF_CONFIG": json.dumps(TWO)}
    two = TFConfigClusterResolver(environ=environ)
    environ["TF_CONFIG"] = json.dumps(with_cluster({"worker": ["a:1", "b:2"]}))
    assert two.cluster_spec().as_dict() == {"worker": ["a:1", "b:2"]}


@pytest.mark.parametrize(
    ("value", "task"),
    [
        (with_task(type="worker", index="1"), ("worker", 1)),
        (
            {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief", "index": 0}},
            ("chief", 0),
        ),
        ({"cluster": {"trainer": ["a:1", "b:1"]}, "task": {"type": "trainer", "index": 0}}, ("trainer", 0)),
        ({"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "ps", "index": 0}}, ("ps", 0)),
        ({"cluster": {"worker": ["a:1"]}}, ("worker", 0)),
        (with_task(type="evaluator", index=0), ("evaluator", 0)),
        (with_cluster({"worker": ["[2001:db8::1]:80", "10.0.0.1:80"]}), ("worker", 1)),
        ({**TWO, "environment": "cloud", "job": "{}"}, ("worker", 1)),
    ],
)
def test_unusual_but_right(value, task):
    assert resolver(value).get_task_info() == task


C, T = 'TF_CONFIG["cluster"]', 'TF_CONFIG["task"]'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('{"cluster": {', ["TF_CONFIG is not JSON", "position 13"]),
        ("worker", ["TF_CONFIG is not JSON", "position 0", "'worker'"]),
        ('["a:1"]', ["TF_CONFIG is", "(a list)", "expected an object"]),
        ("7", ["TF_CONFIG is 7 (a number)"]),
        ({"task": {"type": "worker", "index": 0}}, [f"{C} is missing", "['task']"]),
        (with_cluster({}), [f"{C} is {{}} (an object)", "at least one job"]),
        (with_cluster(None), [f"{C} is null (null)"]),
        (with_cluster(["a:1"]), [f"{C} is", "(a list)"]),
        (with_cluster({"worker": []}), [f'{C}["worker"] is [] (a list)', "non-empty list"]),
        (with_cluster({"worker": "a:1"}), [f'{C}["worker"] is "a:1" (a string)']),
        (with_cluster({"worker": {"0": "a:1"}}), [f'{C}["worker"] is', "(an object)"]),
        (with_cluster({"worker": ["a:1", 5]}), [f'{C}["worker"][1] is 5 (a number)', '"host:port"']),
        (with_cluster({"worker": ["a:1", "b"]}), [f'{C}["worker"][1] is "b" (a string)']),
        (with_cluster({"worker": ["grpc://a:1"]}), [f'{C}["worker"][0]', "without a protocol"]),
        (with_cluster({"worker": ["a b:1"]}), [f'{C}["worker"][0] is "a b:1"']),
        (with_cluster({"worker": ["::1:80"]}), [f'{C}["worker"][0]', "in brackets"]),
        (with_cluster({"worker": ["a:0"]}), [f'{C}["worker"][0] is "a:0"', "between 1 and 65535"]),
        (with_cluster({"worker": ["a:65536"]}), [f'{C}["worker"][0] is "a:65536"', "65535"]),
        (with_cluster({"worker": ["a:x"]}), [f'{C}["worker"][0] is "a:x"']),
        (with_cluster({"worker": ["a:1", "a:1"]}), [f"{C}[\"worker\"][1] is 'a:1'", f'{C}["worker"][0]']),
        (
            with_cluster({"chief": ["a:1"], "worker": ["b:1", "a:1"]}),
            [f'{C}["worker"][1]', f'as is {C}["chief"][0]'],
        ),
        (with_cluster({"chief": ["a:1", "b:1"]}), [f'{C}["chief"] has 2 tasks']),
        ({"cluster": TWO["cluster"]}, [f"{T} is missing", "2 tasks"]),
        ({**TWO, "task": "worker"}, [f'{T} is "worker" (a string)', "an object such as"]),
        (with_task(index=0), [f'{T}["type"] is missing', "['index']"]),
        (with_task(type="worker"), [f'{T}["index"] is missing', "['type']"]),
        (with_task(type="chief", index=0), [f'{T}["type"] is "chief" (a string)', "['worker']"]),
        (with_task(type=3, index=0), [f'{T}["type"] is 3 (a number)']),
        (with_task(type="worker", index=2), [f'{T}["index"] is 2 (a number)', "from 0 to 1"]),
        (with_task(type="worker", index="2"), [f'{T}["index"] is 2 (a number)', "from 0 to 1"]),
        (with_task(type="worker", index=-1), [f'{T}["index"] is -1']),
        (with_task(type="worker", index="one"), [f'{T}["index"] is "one" (a string)']),
        (with_task(type="worker", index=0.5), [f'{T}["index"] is 0.5 (a number)']),
        (with_task(type="worker", index=True), [f'{T}["index"] is true (a boolean)']),
        (with_task(type="worker", index=None), [f'{T}["index"] is null (null)']),
        ({**TWO, "rpc_layer": 1}, ['TF_CONFIG["rpc_layer"] is 1 (a number)']),
    ],
)
def test_a_wrong_value_is_named_by_its_key(value, words):
    with pytest.raises(ClusterConfigError) as caught:
        resolver(value)
    assert [word for word in words if word not in str(caught.value)] == []
    assert "expected" in str(caught.value)
    assert "HINT:" in str(caught.value)


def test_arguments_win_over_the_variable():
    other = resolver(TWO, task_type="worker", task_id=0, rpc_layer="grpc", environment="google")
    assert other.get_task_info() == ("worker", 0)
    assert other.master() == "grpc://host0:12345"
    assert other.environment == "google"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"task_id": 2}, "The argument task_id is 2"), ({"task_type": "ps"}, 'The argument task_type is "ps"')],
)
def test_wrong_arguments_are_named(arguments, word):
    with pytest.raises(ClusterConfigError, match=word):
        resolver(TWO, **arguments)


def test_the_variables_own_protocol_and_master():
    assert resolver({**TWO, "rpc_layer": "grpc+loas"}).master() == "grpc+loas://host1:12345"
    assert resolver({**TWO, "session_master": "grpc://x:1"}).master() == "grpc://x:1"


def test_a_cluster_of_one_has_no_master_as_in_tensorflow():
    one = resolver({"cluster": {"worker": ["a:1"]}})
    assert one.master() == ""
    assert one.cluster_spec().as_dict() == {"worker": ["a:1"]}


def test_an_evaluator_outside_the_cluster_has_no_master():
    assert resolver(with_task(type="evaluator", index=0)).master() == ""
