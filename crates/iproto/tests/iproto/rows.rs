//! The spaces that SELECT can read.

use taskyard_core::command::TubeInfo;
use taskyard_core::{
    Kind, SemaphoreKey, SessionId, Span, TaskId, Timestamp, TubeName, TubeOptions, TubeStats,
};
use taskyard_iproto::{ConsumerRow, Query, Rows, Space, TakenKey, TakenRow, write_rows};
use taskyard_wire::msgpack_to_json;

use crate::hex::args;

const ALL: Query<'static> =
    Query { index: 0, limit: u64::MAX, offset: 0, iterator: 2, key: &[0x90] };

fn shown(space: Space, query: &Query<'_>, rows: Rows<'_>) -> String {
    let mut out = Vec::new();
    write_rows(&mut out, space, query, rows).unwrap();
    msgpack_to_json(&out).unwrap()
}

fn info(name: &str, number: u32, options: TubeOptions) -> TubeInfo {
    TubeInfo {
        name: TubeName::new(name).unwrap(),
        number,
        options,
        stats: TubeStats::default(),
        takeable: 0,
        next_wakeup: None,
        oldest_ready: None,
    }
}

fn tubes() -> Vec<TubeInfo> {
    let plain = TubeOptions::new(Kind::Fifo);
    let full = TubeOptions {
        kind: Kind::LimFifoTtl,
        temporary: true,
        capacity: Some(5),
        ttl: Some(Span::from_micros(1_500_000)),
        ttr: Some(Span::from_secs(2)),
        delay: Some(Span::from_secs(3)),
        pri: 4,
        attempts_max: Some(6),
        retry: None,
        rate: None,
        keep_done: Some(Span::from_secs(8)),
        keep_done_max: 9,
        ttl_kills_taken: true,
        paused: true,
        semaphore: Some(SemaphoreKey::new("yang").unwrap()),
        queue_num: Some(7),
    };
    let closed = TubeOptions { capacity: Some(0), ..TubeOptions::new(Kind::LimFifoTtl) };
    vec![info("a", 0, plain), info("b", 1, full), info("c", 2, closed)]
}

#[test]
fn spaces_are_known_by_number_and_name() {
    for (id, space, name) in [
        (277, Space::Collations, "_vcollation"),
        (281, Space::Spaces, "_vspace"),
        (289, Space::Indexes, "_vindex"),
        (512, Space::Tubes, "_queue"),
        (513, Space::Consumers, "_queue_consumers"),
        (514, Space::Taken, "_queue_taken"),
    ] {
        assert_eq!(Space::from_id(id.into()), Some(space));
        assert_eq!((space.id(), space.name()), (id, name));
    }
    assert_eq!(Space::from_id(280), None);
    assert_eq!(Space::from_id(u64::MAX), None);
}

#[test]
fn the_schema_lists_the_readable_spaces() {
    assert_eq!(shown(Space::Collations, &ALL, Rows::Schema { queue: true }), "[]");
    let spaces = shown(Space::Spaces, &ALL, Rows::Schema { queue: true });
    let queue = r#"[512,1,"_queue","memtx",0,{},[{"name":"tube","type":"string"},{"name":"tube_id","type":"unsigned"},{"name":"space","type":"string"},{"name":"type","type":"string"},{"name":"opts","type":"map"}]]"#;
    assert!(spaces.contains(queue), "{spaces}");
    // They were listed as stored on disk like all others.
    for temporary in ["_queue_consumers", "_queue_taken"] {
        let row = format!(r#""{temporary}","memtx",0,{{"temporary":true}},"#);
        assert!(spaces.contains(&row), "{spaces}");
    }
    let indexes = shown(Space::Indexes, &ALL, Rows::Schema { queue: true });
    let task = r#"[514,1,"task","tree",{"unique":true},[[1,"unsigned"],[2,"unsigned"]]]"#;
    assert!(indexes.contains(task), "{indexes}");
}

#[test]
fn the_schema_hides_what_cannot_be_read() {
    for (space, row) in [(Space::Spaces, "[281,"), (Space::Indexes, "[289,")] {
        let rows = shown(space, &ALL, Rows::Schema { queue: false });
        assert!(rows.contains(row) && !rows.contains("[512,"), "{rows}");
    }
}

#[test]
fn rows_of_the_tubes() {
    let tubes = tubes();
    assert_eq!(
        shown(Space::Tubes, &ALL, Rows::Tubes(&tubes)),
        concat!(
            r#"[["a",0,"a","fifo",{"temporary":false}],"#,
            r#"["b",1,"b","limfifottl",{"temporary":true,"capacity":5,"pri":4,"attempts_max":6,"keep_done_max":9,"#,
            r#""ttl":1.5,"ttr":2.0,"delay":3.0,"keep_done":8.0,"ttl_kills_taken":true,"paused":true,"semaphore":"yang"}],"#,
            r#"["c",2,"c","limfifottl",{"temporary":false,"capacity":-1}]]"#,
        )
    );
}

#[test]
fn rows_of_consumers_and_taken_tasks() {
    let session = Some(SessionId([0; 16]));
    let (timeout, time) = (Timestamp::NEVER, Timestamp::from_micros(5));
    let consumers = [ConsumerRow { session, fid: 9, tube_id: 1, timeout, time }];
    assert_eq!(
        shown(Space::Consumers, &ALL, Rows::Consumers(&consumers)),
        r#"[["00000000-0000-0000-0000-000000000000",9,1,9223372036854775807,5]]"#
    );
    let taken = [
        TakenRow { session, tube_id: 1, task_id: TaskId(7), time },
        TakenRow { session: None, tube_id: 2, task_id: TaskId(8), time },
    ];
    assert_eq!(
        shown(Space::Taken, &ALL, Rows::Taken(&taken)),
        r#"[["",2,8,5],["00000000-0000-0000-0000-000000000000",1,7,5]]"#
    );
}

#[test]
fn rows_are_found_by_key() {
    let names = |index, iterator, key: &str| {
        let tubes = tubes();
        let key = args(key);
        let rows =
            shown(Space::Tubes, &Query { index, iterator, key: &key, ..ALL }, Rows::Tubes(&tubes));
        ["\"a\",", "\"b\","].map(|name| rows.contains(&format!("[{name}")))
    };
    assert_eq!(names(0, 0, r#"["b"]"#), [false, true]);
    assert_eq!(names(0, 0, "[]"), [true, true]);
    assert_eq!(names(1, 1, "[0]"), [true, false]);
    assert_eq!(names(1, 0, "[7]"), [false, false]);
    assert_eq!(names(0, 2, r#"["b"]"#), [false, true], "all begins at the key");
    assert_eq!(names(0, 5, "[]"), [true, true]);
    // The query with which clients look up a space by its name.
    let key = args(r#"["_queue_taken"]"#);
    let query = Query { index: 2, iterator: 0, key: &key, ..ALL };
    assert!(shown(Space::Spaces, &query, Rows::Schema { queue: true }).starts_with("[[514,"));
    let key = args("[512]");
    let query = Query { iterator: 0, key: &key, ..ALL };
    let indexes = shown(Space::Indexes, &query, Rows::Schema { queue: true });
    assert_eq!(indexes.matches("[512,").count(), 2, "the first part of a key is enough");
}

// Only rows equal to a key could be selected; Tarantool iterates from a key in both directions.
#[test]
fn rows_are_iterated_from_a_key() {
    let kinds = TubeOptions::new(Kind::Fifo);
    let tubes =
        [("c", 7), ("a", 9), ("b", 8)].map(|(name, number)| info(name, number, kinds.clone()));
    let names = |index, iterator, key: &str| {
        let key = args(key);
        let query = Query { index, iterator, key: &key, ..ALL };
        let mut out = Vec::new();
        write_rows(&mut out, Space::Tubes, &query, Rows::Tubes(&tubes)).unwrap();
        let rows: Vec<(String, u32, String, String, serde_json::Value)> =
            serde_json::from_str(&msgpack_to_json(&out).unwrap()).unwrap();
        rows.into_iter().map(|row| row.0).collect::<String>()
    };
    for (iterator, all, from_b) in [
        (0, "abc", "b"),
        (1, "cba", "b"),
        (2, "abc", "bc"),
        (3, "cba", "a"),
        (4, "cba", "ba"),
        (5, "abc", "bc"),
        (6, "abc", "c"),
    ] {
        assert_eq!(names(0, iterator, "[]"), all, "{iterator}");
        assert_eq!(names(0, iterator, r#"["b"]"#), from_b, "{iterator}");
    }
    assert_eq!((names(1, 5, "[8]"), names(1, 4, "[8]")), ("ba".into(), "bc".into()));
    let query = Query { iterator: 4, limit: 1, offset: 1, ..ALL };
    assert!(shown(Space::Tubes, &query, Rows::Tubes(&tubes)).starts_with(r#"[["b",8,"#));
}

#[test]
fn a_page_of_rows() {
    let tubes = tubes();
    let page = |offset, limit| {
        let rows = shown(Space::Tubes, &Query { offset, limit, ..ALL }, Rows::Tubes(&tubes));
        ["\"a\",", "\"b\","].map(|name| rows.contains(&format!("[{name}")))
    };
    assert_eq!(page(0, 1), [true, false]);
    assert_eq!(page(1, 1), [false, true]);
    assert_eq!(page(2, 1), [false, false]);
    assert_eq!(page(0, 0), [false, false]);
}

#[test]
fn wrong_queries_write_nothing() {
    let refused = |query: &Query<'_>| {
        let mut out = Vec::new();
        let fault = write_rows(&mut out, Space::Tubes, query, Rows::Tubes(&[])).unwrap_err();
        assert!(out.is_empty());
        fault.code
    };
    assert_eq!(refused(&Query { index: 9, ..ALL }), 35);
    assert_eq!(refused(&Query { key: &[0x92, 1, 2], ..ALL }), 31);
    assert_eq!(refused(&Query { key: &[0x05], ..ALL }), 20);
    assert_eq!(refused(&Query { key: &[0x91], iterator: 0, ..ALL }), 20);
    assert_eq!(refused(&Query { key: &[0x91, 0x05], iterator: 0, ..ALL }), 18);
    assert_eq!(refused(&Query { key: &[0x91, 0xc0], iterator: 2, ..ALL }), 18);
    assert_eq!(refused(&Query { key: &[0x91, 0xa1, 0x61], index: 1, iterator: 5, ..ALL }), 18);
    assert_eq!(refused(&Query { iterator: 7, ..ALL }), 112);
    assert_eq!(refused(&Query { iterator: 12, ..ALL }), 1);
}

#[test]
fn a_key_restricts_the_tasks_to_read() {
    let key = |index, iterator, key: &str| {
        TakenKey::of(&Query { index, iterator, key: &args(key), ..ALL }).unwrap()
    };
    assert_eq!(key(1, 0, "[]"), TakenKey::default());
    let all = TakenKey { narrows: true, ..TakenKey::default() };
    for iterator in [2, 3, 4, 5, 6] {
        assert_eq!(key(1, iterator, "[3]"), all, "rows of other tubes are wanted too");
    }
    assert_eq!((key(1, 5, "[]"), key(1, 4, "[]")), (TakenKey::default(), all));
    let tube = TakenKey { narrows: true, tube_id: Some(3), task_id: None };
    assert_eq!(key(1, 0, "[3]"), tube);
    let task = TakenKey { task_id: Some(TaskId(7)), ..tube };
    assert_eq!(key(1, 0, "[3, 7]"), task);
    assert_eq!(key(0, 0, r#"["some session", 3, 7]"#), task);
    let session = TakenKey { narrows: true, ..TakenKey::default() };
    assert_eq!(key(0, 0, r#"["some session"]"#), session);
}
