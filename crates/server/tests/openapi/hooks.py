"""Corrects requests that fit the document and break a rule that it cannot express.

The fuzzer takes every request that fits the document for a right one, and complains when it is
refused with 400. A few rules go beyond what a schema can express; here such requests are corrected, so
that for all others the complaint is a mistake of the server.
"""

import schemathesis

NAME_BYTES_MAX = 128
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
# MessagePack in base64: the number 1 and an empty map.
ONE, EMPTY_MAP = "AQ==", "gA=="
# Enough for every task of a run.
CAPACITY = 1_000_000
# The actions on chosen tasks.
ACTIONS = ("kick_tasks", "delete_tasks", "bury_tasks", "release_tasks")
# Which options a kind without times does not have.
TIMES = ("ttl", "ttr", "delay", "pri", "ttl_kills_taken")


@schemathesis.hook
def map_case(context, case):
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return case
    for name in ("tube", "semaphore", "schedule"):
        value = (case.path_parameters or {}).get(name)
        if isinstance(value, str):
            case.path_parameters[name] = mended_name(value)
    tube = (case.query or {}).get("tube")
    if isinstance(tube, str):
        case.query["tube"] = mended_name(tube)
    if context.operation.definition.raw.get("operationId") == "tasks" and case.query:
        mend_page(case.query)
        mend_key(case.query)
    if context.operation.definition.raw.get("operationId") == "list_schedules":
        after = (case.query or {}).get("after")
        if isinstance(after, str):
            case.query["after"] = mended_name(after)
    if isinstance(case.body, dict):
        operation = context.operation.definition.raw.get("operationId")
        case.body = mended_body(operation, dict(case.body))
    return case


def mend_page(query):
    """A cursor belongs to one order, states and keys to the order of ids, and moments are not negative."""
    in_queue = query.get("order") == "queue"
    if in_queue:
        query.pop("state", None)
        query.pop("key", None)
    if isinstance(query.get("after"), str):
        query["after"] = "1:2" if in_queue else "1"
    for name in ("created_from", "created_until", "finished_from", "finished_until"):
        if isinstance(query.get(name), (int, float)):
            query[name] = abs(query[name]) % 1_000_000_000


def mend_key(fields):
    """A key has a limit in bytes and no control characters, and two fields belong to it."""
    key = fields.get("key")
    if isinstance(key, str):
        key = "".join(char for char in key if char.isprintable())
        fields["key"] = mended_name(key) or "key"
    else:
        fields.pop("unique_for", None)
        fields.pop("on_conflict", None)


def mend_retry(options):
    """The longest delay is at least the first one, and lost leases need a policy."""
    if isinstance(options.get("retry"), dict):
        options["retry"].pop("delay_max", None)
    else:
        options.pop("retry_lost", None)


def mended_name(name):
    """Names have a limit in bytes; the document can only count characters."""
    if name in (".", ".."):
        return "dots"
    return name.encode("utf-8", "ignore")[:NAME_BYTES_MAX].decode("utf-8", "ignore")


def mended_body(operation, body):
    if operation == "create_tube":
        mend_retry(body)
        return mended_options(body)
    if operation == "alter_tube":
        mend_retry(body)
    if operation == "put":
        if isinstance(body.get("tasks"), list):
            for name in ("key", "unique_for", "on_conflict", "attempts_max"):
                body.pop(name, None)
            body["tasks"] = [mended_task(dict(task)) for task in body["tasks"]]
        return mended_task(body)
    if operation == "take" and isinstance(body.get("worker"), str):
        body["worker"] = mended_name(body["worker"])
    if operation == "ack":
        return mended_result(body)
    if operation == "finish" and isinstance(body.get("tasks"), list):
        body["tasks"] = [mended_result(dict(task)) for task in body["tasks"]]
    if operation in ACTIONS:
        return mended_action(operation, body)
    if operation == "set_semaphore":
        return mended_semaphore(body)
    if operation == "set_schedule":
        return mended_schedule(body)
    if operation == "finish_grants" and isinstance(body.get("items"), list):
        body["items"] = [mended_grant(dict(item)) for item in body["items"]]
    if operation == "semaphore_events" and isinstance(body.get("semaphore"), str):
        body["semaphore"] = mended_name(body["semaphore"])
    return body


def mended_result(body):
    """A result has one of two forms, and both hold one value."""
    if isinstance(body.get("result_base64"), str):
        body["result_base64"] = ONE
        body.pop("result", None)
    if "result" in body:
        body["result"] = mended_value(body["result"])
    return body


def mended_action(operation, body):
    """Options belong to one action each, and moments are not negative."""
    for name, owner in (("reset_attempts", "kick_tasks"), ("error", "bury_tasks"), ("delay", "release_tasks")):
        if operation != owner:
            body.pop(name, None)
    if isinstance(body.get("filter"), dict):
        mend_key(body["filter"])
        for name in ("created_from", "created_until", "finished_from", "finished_until"):
            if isinstance(body["filter"].get(name), (int, float)):
                body["filter"][name] = abs(body["filter"][name]) % 1_000_000_000
    return body


def mended_semaphore(options):
    """Of the holders, no more can be asked to release than there are."""
    options.pop("try_release", None)
    return options


def mended_schedule(schedule):
    """The tube, the time zone and the time exist, and the task may have no key or start time of its own."""
    schedule["tube"] = "kept"
    is_cron = isinstance(schedule.get("cron"), str)
    for name in ("every", "start") if is_cron else ("cron", "zone"):
        schedule.pop(name, None)
    if is_cron:
        schedule["cron"] = "30 9 * * 1-5"
        if isinstance(schedule.get("zone"), str):
            schedule["zone"] = "Europe/Berlin"
    else:
        schedule["every"] = 3600.0
    for name in ("start", "until"):
        if isinstance(schedule.get(name), (int, float)):
            schedule[name] = abs(schedule[name]) % 1_000_000_000
    # The key of an overlap has the name of the schedule in it, which may be too long for one.
    schedule.pop("overlap", None)
    if isinstance(schedule.get("task"), dict):
        task = mended_task(dict(schedule["task"]))
        for name in ("at", "key", "unique_for", "on_conflict", "semaphore_priority"):
            task.pop(name, None)
        schedule["task"] = task
    return schedule


def mended_grant(item):
    """Seconds go with `extend`, and there they must be."""
    if item.get("finish") == "extend":
        item["seconds"] = max(item.get("seconds") or 0, 1)
    else:
        item.pop("seconds", None)
    return item


def mended_options(options):
    """Which options go with which kind stands in the descriptions only."""
    # Only a few kinds may have one, and it must be there.
    options.pop("semaphore", None)
    kind = options.get("kind") or "fifottl"
    if options.get("lenient"):
        return options
    if kind == "limfifottl" and options.get("capacity") is None:
        options["capacity"] = CAPACITY
    if not kind.endswith("ttl"):
        for name in TIMES:
            options.pop(name, None)
    return options


def mended_task(task):
    """Base64 holds one MessagePack value, integers have at most 64 bits, and a start time excludes a delay."""
    mend_key(task)
    if task.get("at") is not None:
        task.pop("delay", None)
    for name, value in (("data_base64", ONE), ("meta_base64", EMPTY_MAP)):
        if isinstance(task.get(name), str):
            task[name] = value
    if task.get("meta") is not None:
        task.pop("meta_base64", None)
    for name in ("data", "meta"):
        if name in task:
            task[name] = mended_value(task[name])
    return task


def mended_value(value):
    if isinstance(value, list):
        return [mended_value(item) for item in value]
    if isinstance(value, dict):
        return {name: mended_value(item) for name, item in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        return max(INTEGER_MIN, min(INTEGER_MAX, value))
    return value
