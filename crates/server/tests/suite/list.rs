//! Pages of tasks: states, orders, filters and cursors.

use std::sync::{Arc, Mutex};

use reqwest::Method;
use serde_json::{Value, json};
use taskyard_core::{
    Body, Command, Error, Execute, Kind, NewTask, Reply, Span, Timestamp, TubeName, TubeOptions,
};
use taskyard_engine::{Engine, ManualClock, Settings};
use taskyard_store::{BodyKey, Capabilities, Executed, MemoryStore, Pending, Store};
use taskyard_wire::json_to_msgpack;

use crate::fixture::Fixture;

const TASKS: &str = "/v1/tubes/mail/tasks";

fn ids(page: &Value) -> Vec<u64> {
    page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_u64().unwrap()).collect()
}

async fn page(fixture: &Fixture, query: &str) -> Value {
    let answer = fixture.get(&format!("{TASKS}?{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {:?}", answer.body);
    answer.body
}

/// Tasks 0 to 9, each `{"to": n}`: 3 and 7 buried, 9 delayed.
async fn filled() -> Fixture {
    let fixture = Fixture::new().await;
    let tasks: Vec<_> = (0..9).map(|n| json!({ "data": { "to": n }, "pri": 9 - n })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    fixture.done("/v1/tubes/mail/put", json!({ "data": { "to": 9 }, "delay": 500 })).await;
    fixture.done("/v1/tubes/mail/bury", json!({ "tasks": [{ "id": 3 }, { "id": 7 }] })).await;
    fixture
}

#[tokio::test]
async fn pages_are_chained_by_the_cursor() {
    let fixture = filled().await;
    let first = page(&fixture, "limit=4").await;
    assert_eq!(ids(&first), [0, 1, 2, 3]);
    assert_eq!(first["tasks"][3]["reason"]["name"], "buried");
    assert_eq!(first["tasks"][1]["data"], json!({ "to": 1 }));
    let second =
        page(&fixture, &format!("limit=4&after={}", first["next"].as_str().unwrap())).await;
    assert_eq!(ids(&second), [4, 5, 6, 7]);
    let last = page(&fixture, &format!("limit=4&after={}", second["next"].as_str().unwrap())).await;
    assert_eq!(ids(&last), [8, 9]);
    assert_eq!(last.get("next"), None);
}

#[tokio::test]
async fn tasks_are_selected_by_state_payload_and_attempts() {
    let fixture = filled().await;
    assert_eq!(ids(&page(&fixture, "state=buried").await), [3, 7]);
    assert_eq!(ids(&page(&fixture, "state=delayed,buried").await), [3, 7, 9]);
    assert_eq!(ids(&page(&fixture, "match=%22to%22:5").await), [5]);
    assert_eq!(ids(&page(&fixture, "match=nothing").await), [] as [u64; 0]);
    assert_eq!(ids(&page(&fixture, "attempts_min=1").await), [] as [u64; 0]);
    assert_eq!(ids(&page(&fixture, "created_until=1").await), [] as [u64; 0]);
    assert_eq!(ids(&page(&fixture, "order=queue&limit=3").await), [8, 6, 5]);
    let rest = page(&fixture, "order=queue&after=4:5").await;
    assert_eq!(ids(&rest), [4, 2, 1, 0]);
}

#[tokio::test]
async fn a_ready_task_has_its_position_in_the_queue() {
    let fixture = filled().await;
    for (id, position) in
        [(8, json!(1)), (6, json!(2)), (0, json!(7)), (3, json!(null)), (9, json!(null))]
    {
        let task = fixture.get(&format!("{TASKS}/{id}")).await.body;
        assert_eq!(task["position"], position, "{id}");
    }
    let tasks: Vec<_> = (0..1_000).map(|n| json!({ "data": n })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    // It was shown for the next 1,000 tasks only.
    assert_eq!(fixture.get(&format!("{TASKS}/8")).await.body["position"], 1_001);
    assert_eq!(fixture.get(&format!("{TASKS}/1009")).await.body["position"], 1_000);
}

#[tokio::test]
async fn tasks_are_selected_by_sub_queue_and_creation() {
    let fixture = Fixture::new().await;
    let created = fixture.send(Method::PUT, "/v1/tubes/mail", json!({ "kind": "utubettl" })).await;
    assert!(created.status < 300, "{}", created.body);
    let tasks = ["ann", "bob", "ann"].map(|name| json!({ "data": name, "subqueue": name }));
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    assert_eq!(ids(&page(&fixture, "subqueue=ann").await), [0, 2]);
    assert_eq!(ids(&page(&fixture, "subqueue=an").await), [] as [u64; 0]);
    let created = page(&fixture, "").await["tasks"][0]["created"].as_f64().unwrap();
    let (from, later) = (created.floor(), created.floor() + 1.0);
    assert_eq!(ids(&page(&fixture, &format!("created_from={from}")).await), [0, 1, 2]);
    assert_eq!(ids(&page(&fixture, &format!("created_from={later}")).await), [] as [u64; 0]);
    // The filter of an action is the same.
    let chosen = json!({ "filter": { "subqueue": "ann" } });
    assert_eq!(fixture.done(&format!("{TASKS}/delete"), chosen).await["changed"], 2);
    assert_eq!(ids(&page(&fixture, "").await), [1]);
}

/// A search stops after 20,000 tasks, so that it does not keep a connection busy for long; the cursor leads on.
#[tokio::test]
async fn a_search_is_done_in_steps() {
    let (fixture, _) = SlowStore::serve(0).await;
    let tasks: Vec<_> = (0..21_000).map(|n| json!({ "data": n })).collect();
    for tasks in tasks.chunks(7_000) {
        fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    }
    let first = page(&fixture, "match=20999").await;
    assert_eq!((ids(&first), &first["scanned"]), (vec![], &json!(20_000)));
    let second =
        page(&fixture, &format!("match=20999&after={}", first["next"].as_str().unwrap())).await;
    assert_eq!((ids(&second), &second["scanned"]), (vec![20_999], &json!(1_000)));
}

/// All tasks that a search finds, page after page, and how many it compared.
async fn search(fixture: &Fixture, query: &str) -> (Vec<u64>, u64) {
    let (mut found, mut scanned, mut after) = (Vec::new(), 0, String::new());
    loop {
        let page = page(fixture, &format!("{query}{after}")).await;
        found.extend(ids(&page));
        scanned += page["scanned"].as_u64().unwrap();
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return (found, scanned),
        }
    }
}

/// A search looks ids up without a list of them while most of them have tasks. It finds each task once where ids are dense, where
/// most are finished and where most tasks are in another state, whatever the size of its pages is.
#[tokio::test]
async fn a_search_finds_each_task_once() {
    let fixture = Fixture::new().await;
    let tasks: Vec<_> = (0..7_000).map(|n| json!({ "data": format!("t{}", n % 7) })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    let is_gone = |id: &u64| {
        *id < 50 || (1_000..3_500).contains(id) && !id.is_multiple_of(90) || id % 11 == 3
    };
    let gone: Vec<u64> = (0..7_000).filter(is_gone).collect();
    fixture.done("/v1/tubes/mail/delete", json!({ "ids": gone })).await;
    let left: Vec<u64> = (0..7_000).filter(|id| !is_gone(id)).collect();
    let is_buried = |id: &u64| (4_000..5_000).contains(id) && !id.is_multiple_of(40);
    let buried: Vec<_> =
        left.iter().filter(|id| is_buried(id)).map(|id| json!({ "id": id })).collect();
    fixture.done("/v1/tubes/mail/bury", json!({ "tasks": buried })).await;
    for (query, limit) in [("state=ready", 7), ("state=ready", 1_000), ("state=buried", 90)] {
        let in_state = |id: &&u64| is_buried(id) == (query == "state=buried");
        let compared: Vec<u64> = left.iter().filter(in_state).copied().collect();
        let expected: Vec<u64> = compared.iter().filter(|id| *id % 7 == 5).copied().collect();
        let (found, scanned) = search(&fixture, &format!("{query}&match=t5&limit={limit}")).await;
        assert_eq!((found, scanned), (expected, compared.len() as u64), "{query}, limit {limit}");
    }
    let (all, scanned) = search(&fixture, "limit=1000").await;
    assert_eq!((all, scanned), (left.clone(), left.len() as u64));
}

/// Payloads of a hundred tasks together may be larger than one reply may be.
#[tokio::test]
async fn a_search_reads_large_payloads_in_smaller_parts() {
    let fixture = Fixture::new().await;
    let tube = TubeName::new("mail").unwrap();
    let options = TubeOptions::new(Kind::Fifo);
    let create = Command::CreateTube { tube: tube.clone(), options, if_not_exists: false };
    let small = NewTask::new(Body::new(b"\xa5small"));
    let mut text = vec![b'x'; 1 << 19];
    text.splice(..5, [0xdb, 0x00, 0x07, 0xff, 0xfb]);
    let large = NewTask::new(Body::new(&text));
    let put = |tasks| Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
    let commands = vec![
        create,
        put(vec![small.clone(); 300]),
        put(vec![large.clone(); 100]),
        put(vec![large; 100]),
        put(vec![small; 300]),
    ];
    assert!(fixture.engine.execute(commands).await.iter().all(Result::is_ok));
    let (found, scanned) = search(&fixture, "match=small&limit=1000").await;
    assert_eq!((found, scanned), ((0..300).chain(500..800).collect(), 800));
}

/// A store in which each task of a peek takes a certain time of a manual clock.
struct SlowStore {
    store: MemoryStore,
    clock: Arc<ManualClock>,
    task_micros: i64,
    peeks: Arc<Mutex<Vec<Peeked>>>,
}

/// A peek or a search: the number of ids, and the bytes of the payloads that it reads.
#[derive(Clone, Copy, Debug)]
struct Peeked {
    ids: usize,
    bytes: usize,
}

impl SlowStore {
    /// A server over such a store, and the peeks that it sends.
    async fn serve(task_micros: i64) -> (Fixture, Arc<Mutex<Vec<Peeked>>>) {
        let clock = Arc::new(ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000)));
        let peeks = Arc::new(Mutex::new(Vec::new()));
        let (store, shared) = (MemoryStore::default(), peeks.clone());
        let store = SlowStore { store, clock: clock.clone(), task_micros, peeks: shared };
        let engine = Engine::start(Box::new(store), clock, Settings::default());
        (Fixture::over(engine, |_| {}).await, peeks)
    }
}

impl Store for SlowStore {
    fn execute(&self, now: Timestamp, commands: Vec<Command>) -> Pending<'_, Executed> {
        let peeked = commands.iter().find_map(|command| match command {
            Command::Peek { ids, .. } => Some(ids.len()),
            Command::Search(search) => Some(search.count),
            _ => None,
        });
        Box::pin(async move {
            let executed = self.store.execute(now, commands).await;
            if let Some(ids) = peeked {
                self.clock.advance(Span::from_micros(self.task_micros * ids as i64));
                let bytes = executed.replies.iter().map(payload_bytes).sum();
                self.peeks.lock().unwrap().push(Peeked { ids, bytes });
            }
            executed
        })
    }

    fn load(&self, keys: Vec<BodyKey>) -> Pending<'_, Vec<Result<Option<Body>, Error>>> {
        self.store.load(keys)
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn close(&self) -> Pending<'_, Result<(), Error>> {
        self.store.close()
    }
}

fn payload_bytes(reply: &Result<Reply, Error>) -> usize {
    let tasks = match reply {
        Ok(Reply::Tasks(tasks)) => tasks,
        Ok(Reply::Found(found)) => return found.bytes as usize,
        _ => return 0,
    };
    tasks.iter().filter_map(|task| Some(task.body.as_ref()?.payload().len())).sum()
}

/// A peek had at least a hundred tasks, so one with payloads of 512 KiB carried 51 MB.
#[tokio::test]
async fn a_peek_of_a_search_carries_a_few_mebibytes() {
    let (fixture, peeks) = SlowStore::serve(1).await;
    let tasks: Vec<_> = (0..60).map(|_| json!({ "data": "x".repeat(500_000) })).collect();
    for tasks in tasks.chunks(20) {
        fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    }
    for query in ["match=nothing", "limit=60"] {
        peeks.lock().unwrap().clear();
        assert_eq!(page(&fixture, query).await["scanned"], 60, "{query}");
        let peeks = peeks.lock().unwrap().clone();
        assert!(peeks.iter().all(|peek| peek.bytes < 6 << 20), "{query}: {peeks:?}");
        assert_eq!(peeks.iter().map(|peek| peek.bytes / 500_000).sum::<usize>(), 60, "{query}");
    }
    // So does one that only counts tasks.
    peeks.lock().unwrap().clear();
    let ids: Vec<u64> = (0..60).collect();
    let counted =
        fixture.done(&format!("{TASKS}/delete"), json!({ "ids": ids, "dry_run": true })).await;
    assert_eq!(counted["matched"], 60);
    assert!(peeks.lock().unwrap().iter().all(|peek| peek.bytes < 6 << 20));
}

/// The parts of a search were limited by the number of tasks alone, however long a store took for one.
#[tokio::test]
async fn a_peek_of_a_search_takes_a_few_milliseconds() {
    for (task_micros, ids_max) in [(1, 1_200), (50, 100), (1_000, 10)] {
        let (fixture, peeks) = SlowStore::serve(task_micros).await;
        let tasks: Vec<_> = (0..5_100).map(|n| json!({ "data": n })).collect();
        fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
        peeks.lock().unwrap().clear();
        let (found, scanned) = search(&fixture, "match=nothing").await;
        assert_eq!((found, scanned), (vec![], 5_100));
        let peeks = peeks.lock().unwrap().clone();
        let largest = peeks.iter().map(|peek| peek.ids).max();
        assert_eq!(largest, Some(ids_max), "{task_micros}: {peeks:?}");
        let too_long = peeks.iter().filter(|peek| peek.ids as i64 * task_micros > 5_000).count();
        // The first of each request.
        let requests = peeks.iter().filter(|peek| peek.ids == 10).count();
        assert!(too_long <= requests, "{task_micros}: {peeks:?}");
    }
}

/// A request compared 5,000 tasks, however long a store took for one.
#[tokio::test]
async fn a_search_ends_after_two_seconds() {
    let (fixture, _) = SlowStore::serve(1_000).await;
    let tasks: Vec<_> = (0..2_100).map(|n| json!({ "data": n })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    let first = page(&fixture, "match=2099").await;
    assert_eq!((&first["scanned"], &first["next"]), (&json!(2_000), &json!("1999")));
    assert_eq!(search(&fixture, "match=2099&after=1999").await, (vec![2_099], 100));
    // If the last ids have no tasks, it goes on until there is one.
    let gone: Vec<u64> = (1_995..2_000).collect();
    fixture.done(&format!("{TASKS}/delete"), json!({ "ids": gone })).await;
    assert_eq!(search(&fixture, "match=2099").await, (vec![2_099], 2_095));
}

/// Texts are compared with payloads and with their JSON, whether or not they have bytes that a payload must have.
#[tokio::test]
async fn a_text_is_found_in_payloads_and_in_their_json() {
    let fixture = Fixture::new().await;
    let data = [
        json!({ "name": "Ada \"the first\"", "number": 4711, "urgent": true }),
        json!("one\ntwo\u{1f}six"),
        json!(["größe", [null, { "deep": [-1.5e-7] }]]),
        json!({ "path": "C:\\new\\table", "number": 174 }),
        json!("nothing"),
    ];
    let tasks: Vec<_> = data.iter().map(|data| json!({ "data": data })).collect();
    // More tasks follow, so that most are read without a list of their ids.
    let others = (0..1_500).map(|n| json!({ "data": format!("task {n}") }));
    let tasks: Vec<_> = others.clone().chain(tasks).chain(others).collect();
    for tasks in tasks.chunks(1_000) {
        fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    }
    let texts = [
        "4711",
        "471",
        "true",
        "null",
        "Ada",
        "\\\"the first",
        "\"the first",
        "{\"name\":\"A",
        "one\\ntwo",
        "two\\u001fsix",
        "u001fsix",
        "ntwo",
        "größe",
        "1.5e-7",
        "deep\":[-1",
        "\\\\new",
        "\\new",
        "table\",\"n",
        "othing",
        "task 7",
        "no payload contains this",
        "]",
        "\",\"",
    ];
    for text in texts {
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let contains = |(id, task): (usize, &Value)| {
            let json = task["data"].to_string();
            let payload = json_to_msgpack(&json).unwrap();
            let is_raw = payload.windows(text.len()).any(|bytes| bytes == text.as_bytes());
            (json.contains(text) || is_raw).then_some(id as u64)
        };
        let expected: Vec<u64> = tasks.iter().enumerate().filter_map(contains).collect();
        let (found, scanned) = search(&fixture, &format!("match={encoded}&limit=1000")).await;
        assert_eq!((found, scanned), (expected, tasks.len() as u64), "{text}");
    }
}

/// Puts tasks, takes tasks, acks those of them that are not to be found and releases the others.
async fn put_and_take(fixture: &Fixture, turn: u64) {
    let tasks: Vec<_> = (0..30)
        .map(|n| json!({ "data": format!("other {turn} {n}"), "pri": n % 3 * 10 }))
        .collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    let taken = fixture.done("/v1/tubes/mail/take", json!({ "count": 40 })).await;
    let taken = taken["tasks"].as_array().unwrap();
    let (fixed, others): (Vec<&Value>, Vec<&Value>) =
        taken.iter().partition(|task| task["data"].as_str().unwrap().starts_with("fixed"));
    let items = |tasks: &[&Value]| -> Vec<Value> {
        tasks.iter().map(|task| json!({ "id": task["id"], "lease": task["lease"] })).collect()
    };
    fixture.done("/v1/tubes/mail/ack", json!({ "tasks": items(&others) })).await;
    fixture.done("/v1/tubes/mail/release", json!({ "tasks": items(&fixed) })).await;
}

/// Tasks that exist during the whole search are found once, while others are put, taken and acked between and during its requests,
/// and while they are taken and released themselves.
#[tokio::test]
async fn a_search_finds_each_task_once_while_tasks_come_and_go() {
    let fixture = Fixture::new().await;
    // Task 4 n is one of the fixed ones, from 3,000 on only one of forty.
    let is_fixed = |id: u64| id.is_multiple_of(if id < 3_000 { 4 } else { 40 });
    let data = |id| if is_fixed(id) { format!("fixed {id}") } else { format!("other {id}") };
    let tasks: Vec<_> =
        (0..6_000).map(|id| json!({ "data": data(id), "pri": id % 5 * 10 })).collect();
    fixture.done("/v1/tubes/mail/put", json!({ "tasks": tasks })).await;
    let expected: Vec<u64> = (0..6_000).filter(|id| is_fixed(*id)).collect();
    for limit in [20, 300] {
        let (mut found, mut after, mut turn) = (Vec::new(), String::new(), 0);
        loop {
            let query = format!("match=fixed&limit={limit}{after}");
            let (page, ()) = tokio::join!(page(&fixture, &query), put_and_take(&fixture, turn));
            found.extend(ids(&page));
            put_and_take(&fixture, turn + 1).await;
            turn += 2;
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        assert_eq!(found, expected, "limit {limit}");
    }
}

#[tokio::test]
async fn a_long_payload_is_cut() {
    let fixture = Fixture::new().await;
    let long = "ä".repeat(2_000);
    fixture.done("/v1/tubes/mail/put", json!({ "data": long })).await;
    let task = &page(&fixture, "").await["tasks"][0];
    assert_eq!(task["cut"], true);
    let shown = task["data"].as_str().unwrap();
    assert!(shown.starts_with("\"ää") && (1_000..=1_024).contains(&shown.len()), "{}", shown.len());
    assert_eq!(fixture.get(&format!("{TASKS}/0")).await.body["data"], long);
}

#[tokio::test]
async fn wrong_queries_are_refused_with_the_allowed_values() {
    let fixture = filled().await;
    for (query, part) in [
        ("state=dead", "ready, taken, delayed, buried"),
        ("limit=1001", "between 1 and 1000"),
        ("limit=0", "between 1 and 1000"),
        ("limit=x", "1 to 1000"),
        ("after=x", "`next` of a page"),
        ("order=queue&after=1", "`next` of a page"),
        ("order=best", "id or queue"),
        ("colour=red", "expected one of"),
    ] {
        let answer = fixture.get(&format!("{TASKS}?{query}")).await;
        let message = answer.refused(400, "invalid");
        assert!(message.contains(part), "{query}: {message}");
    }
    fixture.get("/v1/tubes/nowhere/tasks").await.refused(404, "tube_not_found");
}
