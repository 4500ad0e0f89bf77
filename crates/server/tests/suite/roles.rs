//! Users and roles over HTTP: each cell of the table of endpoints and roles, and what lists show.

use std::collections::BTreeSet;

use reqwest::Method;
use reqwest::header::HOST;
use serde_json::{Value, json};
use taskyard_core::access::{NamePattern, Role};
use taskyard_core::{Command, Execute, SessionId, Span, Take, TubeName};
use taskyard_server::{Grant, Grants, Token, User, Users};
use taskyard_testkit::recorded_output::register_secret;

use crate::fixture::{Answer, Fixture};

const ADMIN_TOKEN: &str = "the-token-of-the-server";

/// A request: the operation id, the method and the path, the body, and the roles that allow it, each
/// by its first letter. `~` is the tube `mail`, `^` the semaphore and `@` the schedule of that name.
type RoleCase = (&'static str, &'static str, Value, &'static str);

fn token_of(role: Role, pattern: &str) -> String {
    format!("token-of-{}-{pattern}", role.name())
}

fn user(role: Role, pattern: &str) -> User {
    let names = vec![NamePattern::new(pattern).unwrap()];
    let grants = Grants::List(vec![Grant::roles(&[role], names)]);
    let name = format!("{} of {pattern}", role.name());
    register_secret(&token_of(role, pattern));
    User::with_token(&name, &token_of(role, pattern), grants)
}

/// A server with a user of each role for each of these patterns, and a token.
async fn server(patterns: &[&str]) -> Fixture {
    let users = patterns.iter().flat_map(|pattern| Role::ALL.map(|role| user(role, pattern)));
    let users = Users::new(users.collect());
    register_secret(ADMIN_TOKEN);
    Fixture::with(|config| {
        config.users = users;
        config.token = Token::new(ADMIN_TOKEN).ok();
    })
    .await
}

async fn send(fixture: &Fixture, token: &str, method: Method, path: &str, body: &Value) -> Answer {
    let request = fixture.request(method.clone(), path).bearer_auth(token);
    let request = if method == Method::GET { request } else { request.json(body) };
    Answer::of(request.send().await.unwrap()).await
}

async fn done(fixture: &Fixture, method: Method, path: &str, body: Value) -> Value {
    let answer = send(fixture, ADMIN_TOKEN, method, path, &body).await;
    assert!(answer.status < 300, "{path}: {}", answer.body);
    answer.body
}

/// A tube with a task, a semaphore and a schedule of this name.
async fn create(fixture: &Fixture, name: &str) {
    done(fixture, Method::POST, &format!("/v1/tubes/{name}/put"), json!({ "data": "secret" }))
        .await;
    done(fixture, Method::PUT, &format!("/v1/semaphores/{name}"), json!({ "active": 1 })).await;
    let schedule = json!({ "tube": name, "every": 3600, "task": { "data": "secret" } });
    done(fixture, Method::PUT, &format!("/v1/schedules/{name}"), schedule).await;
}

/// The requests of producers and consumers.
fn delivery_cases() -> Vec<RoleCase> {
    let held = || json!({ "id": 0, "lease": 1, "error": "e" });
    let any = || json!({ "id": 0, "error": "e" });
    let ack_own = json!({ "tasks": [{ "verb": "ack", "id": 0, "lease": 1 }] });
    let ack_both =
        json!({ "tasks": [{ "verb": "ack", "id": 0, "lease": 1 }, { "verb": "ack", "id": 1 }] });
    vec![
        ("put", "POST ~/put", json!({ "data": 1 }), "pa"),
        ("put", "POST ~/put", json!({ "data": 1, "estimate": true }), "pa"),
        ("put", "POST /v1/tubes/new/put", json!({ "data": 1 }), "pa"),
        ("take", "POST ~/take", json!({}), "ca"),
        ("ack", "POST ~/ack", json!({ "id": 0, "lease": 1 }), "ca"),
        ("ack", "POST ~/ack", json!({ "id": 0 }), "oa"),
        ("release", "POST ~/release", json!({ "id": 0, "lease": 1 }), "ca"),
        ("release", "POST ~/release", json!({ "id": 0 }), "oa"),
        ("touch", "POST ~/touch", json!({ "id": 0, "lease": 1, "seconds": 1 }), "ca"),
        ("touch", "POST ~/touch", json!({ "id": 0, "seconds": 1 }), "oa"),
        ("fail", "POST ~/fail", held(), "ca"),
        ("fail", "POST ~/fail", any(), "oa"),
        ("bury", "POST ~/bury", held(), "coa"),
        ("bury", "POST ~/bury", any(), "coa"),
        ("finish", "POST ~/finish", ack_own, "ca"),
        ("finish", "POST ~/finish", ack_both, "a"),
    ]
}

/// The requests of operators and administrators for tubes, and those that look.
fn tube_cases() -> Vec<RoleCase> {
    let (none, ids) = (|| json!({}), || json!({ "ids": [99] }));
    vec![
        ("list_tubes", "GET /v1/tubes", none(), "rpcoa"),
        ("show_tube", "GET ~", none(), "rpcoa"),
        ("consumers", "GET ~/consumers", none(), "rpcoa"),
        ("show_tube", "GET ~?estimate=true", none(), "rpcoa"),
        ("stats", "GET /v1/stats", none(), "rpcoa"),
        ("series", "GET /v1/series?tube=mail", none(), "rpcoa"),
        ("kick", "POST ~/kick", none(), "oa"),
        ("delete", "POST ~/delete", ids(), "oa"),
        ("peek", "POST ~/peek", ids(), "oa"),
        ("positions", "POST ~/positions", ids(), "rpcoa"),
        ("peek_one", "GET ~/tasks/0", none(), "oa"),
        ("peek_one", "GET ~/tasks/0?estimate=true", none(), "oa"),
        ("tasks", "GET ~/tasks", none(), "oa"),
        ("tasks", "GET ~/tasks?estimate=true", none(), "oa"),
        ("deliveries", "GET ~/deliveries", none(), "oa"),
        ("kick_tasks", "POST ~/tasks/kick", ids(), "oa"),
        ("bury_tasks", "POST ~/tasks/bury", ids(), "coa"),
        ("bury_tasks", "POST ~/tasks/bury", json!({ "filter": { "match": "x" } }), "oa"),
        ("release_tasks", "POST ~/tasks/release", ids(), "oa"),
        ("delete_tasks", "POST ~/tasks/delete", ids(), "oa"),
        ("alter_tube", "PATCH ~", json!({ "paused": false }), "oa"),
        ("alter_tube", "PATCH ~", json!({ "pri": 1 }), "a"),
        ("truncate", "POST ~/truncate", none(), "oa"),
        ("release_all", "POST ~/release-all", none(), "oa"),
        ("create_tube", "PUT ~", none(), "a"),
        ("name_tube", "POST ~/name", json!({ "name": "mail" }), "a"),
    ]
}

/// The requests for the server, semaphores and schedules; those that remove something come last.
fn other_cases() -> Vec<RoleCase> {
    let none = || json!({});
    let schedule = json!({ "tube": "mail", "every": 3600, "task": { "data": 1 } });
    let entries = json!({ "tasks": [{ "task": 7, "priority": 1 }] });
    vec![
        ("health", "GET /healthz", none(), "rpcoa"),
        ("openapi", "GET /openapi.json", none(), "rpcoa"),
        ("sign_in", "POST /v1/session", none(), "rpcoa"),
        ("show_session", "GET /v1/session", none(), "rpcoa"),
        ("sign_out", "DELETE /v1/session", none(), "rpcoa"),
        ("workers", "GET /v1/workers", none(), "roa"),
        ("metrics", "GET /metrics", none(), "roa"),
        ("manager", "GET /v1/manager", none(), "roa"),
        ("services", "GET /v1/services", none(), "roa"),
        ("audit", "GET /v1/audit", none(), "a"),
        // Refused by the memory store.
        ("backup", "POST /v1/backup", none(), "a"),
        ("list_semaphores", "GET /v1/semaphores", none(), "rpcoa"),
        ("show_semaphore", "GET ^", none(), "rpcoa"),
        ("holders", "GET ^/holders", none(), "rpcoa"),
        ("waiting", "GET ^/waiting", none(), "rpcoa"),
        ("peek_semaphore", "POST ^/peek", json!({ "tasks": [1] }), "rpcoa"),
        ("enqueue", "POST ^/enqueue", entries, "ca"),
        ("finish_grants", "POST ^/finish", json!({ "items": [{ "task": 9 }] }), "ca"),
        ("semaphore_events", "POST /v1/semaphore-events", json!({ "semaphore": "mail" }), "ca"),
        ("semaphore_events", "POST /v1/semaphore-events", none(), "ca"),
        ("acknowledge_events", "POST /v1/semaphore-events/ack", json!({ "events": [99] }), "ca"),
        ("semaphore_event_socket", "GET /v1/semaphore-events/socket?semaphore=mail", none(), "ca"),
        ("set_semaphore", "PUT ^", json!({ "active": 1 }), "a"),
        ("list_schedules", "GET /v1/schedules", none(), "rpcoa"),
        ("show_schedule", "GET @", none(), "rpcoa"),
        ("next_times", "GET @/next", none(), "rpcoa"),
        ("run_schedule", "POST @/run", none(), "pa"),
        ("pause_schedule", "POST @/pause", none(), "oa"),
        ("resume_schedule", "POST @/resume", none(), "oa"),
        ("set_schedule", "PUT @", schedule, "a"),
        ("remove_schedule", "DELETE @", none(), "a"),
        ("drop_semaphore", "DELETE ^?force=true", none(), "a"),
        ("drop_tube", "DELETE ~", none(), "a"),
    ]
}

/// A case with its method and its whole path.
struct RoleRequest {
    operation: &'static str,
    method: Method,
    path: String,
    body: Value,
    roles: &'static str,
}

fn requests() -> Vec<RoleRequest> {
    let cases = [delivery_cases(), tube_cases(), other_cases()].into_iter().flatten();
    let requests = cases.map(|(operation, request, body, roles)| {
        let (method, path) = request.split_once(' ').unwrap();
        let path = path.replace('~', "/v1/tubes/mail");
        let path = path.replace('^', "/v1/semaphores/mail").replace('@', "/v1/schedules/mail");
        RoleRequest { operation, method: method.parse().unwrap(), path, body, roles }
    });
    requests.collect()
}

// One step checks rights, query and content type. A user without the role must not learn from the answer what else is wrong.
#[tokio::test]
async fn a_missing_role_is_refused_before_a_query_and_a_query_before_the_content() {
    let fixture = server(&["*"]).await;
    let reader = token_of(Role::Read, "*");
    for (token, path, status, code) in [
        (reader.as_str(), "/v1/tubes/mail/put?x=1", 403, "forbidden"),
        (ADMIN_TOKEN, "/v1/tubes/mail/put?x=1", 400, "invalid"),
        (ADMIN_TOKEN, "/v1/tubes/mail/put", 415, "unsupported_media_type"),
    ] {
        let request = fixture.request(Method::POST, path).bearer_auth(token);
        let request = request.header("content-type", "text/plain").body("{}");
        Answer::of(request.send().await.unwrap()).await.refused(status, code);
    }
}

#[tokio::test]
async fn every_endpoint_has_a_case() {
    let fixture = Fixture::new().await;
    let document = fixture.get("/openapi.json").await.body;
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|path| path.as_object().unwrap().values());
    let operations = operations.map(|one| one["operationId"].as_str().unwrap().to_owned());
    let operations: BTreeSet<String> = operations.collect();
    let tested: BTreeSet<String> = requests().iter().map(|one| one.operation.to_owned()).collect();
    assert_eq!(operations, tested);
}

/// What only an open endpoint shows.
fn is_open(operation: &str) -> bool {
    matches!(operation, "health" | "openapi")
}

// Each cell of the table: a user with one role for all names sends each request. The user of another
// pattern sends it too, and is refused with the name of the role and of the tube.
#[tokio::test]
async fn a_role_allows_its_endpoints_and_no_others() {
    let fixture = server(&["*", "other.*"]).await;
    for role in Role::ALL {
        create(&fixture, "mail").await;
        for RoleRequest { operation, method, path, body, roles } in requests() {
            let is_allowed = roles.contains(&role.name()[..1]);
            let token = token_of(role, "other.*");
            let answer = send(&fixture, &token, method.clone(), &path, &body).await;
            let is_in_path = path.split('?').next().is_some_and(|path| path.contains("mail"));
            if is_in_path || path.contains("mail") || body["semaphore"] == "mail" {
                let message = answer.refused(403, "forbidden").to_owned();
                assert!(message.contains("the role '"), "{role:?} {operation}: {message}");
                let is_complete = message.contains("'mail'") || !is_in_path;
                assert!(is_complete, "{role:?} {operation}: {message}");
            }
            let token = token_of(role, "*");
            let answer = send(&fixture, &token, method, &path, &body).await;
            let cell = format!("{role:?} {operation} {path}: {} {}", answer.status, answer.body);
            assert_eq!(answer.status != 403, is_allowed, "{cell}");
            let is_answered = answer.status < 500 || answer.status == 501;
            assert!(answer.status != 401 && is_answered, "{cell}");
            if !is_allowed {
                let message = answer.refused(403, "forbidden");
                assert!(message.contains(role.name()) && message.contains("the role '"), "{cell}");
            }
        }
    }
}

#[tokio::test]
async fn no_endpoint_but_the_open_ones_answers_without_a_token() {
    let fixture = server(&["*"]).await;
    for RoleRequest { operation, method, path, body, .. } in requests() {
        let request = fixture.request(method.clone(), &path);
        let request = if method == Method::GET { request } else { request.json(&body) };
        let missing = Answer::of(request.send().await.unwrap()).await;
        match is_open(operation) {
            true => assert_eq!(missing.status, 200, "{operation}"),
            false => {
                missing.refused(401, "unauthorized");
            }
        }
    }
    let wrong = send(&fixture, "token-of-read-x", Method::GET, "/v1/tubes", &json!({})).await;
    wrong.refused(401, "unauthorized");
}

/// A producer may not look into the tube, but an estimate of its own task is part of the answer to its put.
#[tokio::test]
async fn a_producer_gets_the_estimates_of_its_puts() {
    let fixture = server(&["*"]).await;
    let (token, put) = (token_of(Role::Produce, "*"), json!({ "data": 1, "estimate": true }));
    for ahead in 0..2 {
        let answer = send(&fixture, &token, Method::POST, "/v1/tubes/mail/put", &put).await;
        let task = &answer.body["tasks"][0];
        assert_eq!(
            (&task["ahead"], &task["no_estimate"]["name"]),
            (&json!(ahead), &json!("no_consumer"))
        );
    }
}

/// The names in a list.
fn names<'a>(list: &'a Value, field: &str) -> Vec<&'a str> {
    let list = list.as_array().unwrap().iter();
    list.map(|one| one[field].as_str().unwrap()).collect()
}

#[tokio::test]
async fn lists_and_statistics_show_what_the_user_may_see() {
    let fixture = server(&["mail.*", "*"]).await;
    for name in ["mail.a", "orders", "mail.b"] {
        create(&fixture, name).await;
        let take = json!({ "worker": format!("worker of {name}") });
        done(&fixture, Method::POST, &format!("/v1/tubes/{name}/take"), take).await;
    }
    let seen = ["mail.a", "mail.b"];
    let get = async |role, path| {
        let token = token_of(role, "mail.*");
        let answer = send(&fixture, &token, Method::GET, path, &json!({})).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    };
    for role in Role::ALL {
        assert_eq!(names(&get(role, "/v1/tubes").await["tubes"], "name"), seen);
        let stats = get(role, "/v1/stats").await;
        assert_eq!(names(&stats["tubes"], "name"), seen);
        let estimated = get(role, "/v1/stats?estimate=true").await;
        assert_eq!(names(&estimated["tubes"], "name"), seen);
        assert_eq!(
            (&stats["total"]["tubes"], &stats["total"]["tasks"]["taken"]),
            (&json!(2), &json!(2))
        );
        let semaphores = get(role, "/v1/semaphores").await;
        assert_eq!(names(&semaphores["semaphores"], "key"), seen);
        let schedules = get(role, "/v1/schedules").await;
        assert_eq!(names(&schedules["schedules"], "name"), seen);
        // A payload is for those roles that may look into tasks.
        let shows = matches!(role, Role::Operate | Role::Admin);
        let one = get(role, "/v1/schedules/mail.a").await;
        for schedule in [&schedules["schedules"][0], &one] {
            assert_eq!(schedule["task"]["data"] == "secret", shows, "{role:?} {schedule}");
        }
    }
    for role in [Role::Read, Role::Operate, Role::Admin] {
        let workers = get(role, "/v1/workers").await;
        let expected = ["worker of mail.a", "worker of mail.b"];
        assert_eq!(names(&workers["workers"], "name"), expected);
    }
    // What is not divided by names needs all of them.
    for path in ["/metrics", "/v1/series", "/v1/manager", "/v1/services"] {
        for role in Role::ALL {
            let token = token_of(role, "mail.*");
            let answer = send(&fixture, &token, Method::GET, path, &json!({})).await;
            assert!(answer.refused(403, "forbidden").contains("pattern '*'"), "{path}");
        }
    }
    // Pages of schedules are complete although the hidden ones are left out.
    let page = get(Role::Read, "/v1/schedules?count=1").await;
    assert_eq!(
        (names(&page["schedules"], "name"), &page["next"]),
        (vec!["mail.a"], &json!("mail.a"))
    );
}

// With the id of a session, which every role could see, a user could end the deliveries of that session.
#[tokio::test]
async fn the_session_of_a_consumer_is_shown_to_operators() {
    let fixture = server(&["*"]).await;
    create(&fixture, "mail").await;
    let (session, engine) = (SessionId([7; 16]), fixture.engine.clone());
    let tube = TubeName::new("mail").unwrap();
    engine.execute(vec![Command::JoinSession { session, create: true }]).await;
    engine.execute(vec![Command::Truncate { tube: tube.clone() }]).await;
    let wait = Span::from_secs(1000);
    let take = Take { tube, count: 1, session: Some(session), lease: None, worker: None, wait };
    let waiting = tokio::spawn(async move { engine.execute(vec![Command::Take(take)]).await });
    fixture.consumers("mail", 1).await;
    for role in Role::ALL {
        let (token, path) = (token_of(role, "*"), "/v1/tubes/mail/consumers");
        let shown = send(&fixture, &token, Method::GET, path, &json!({})).await.body;
        let may_act = matches!(role, Role::Operate | Role::Admin);
        assert_eq!(shown["consumers"][0].get("session").is_some(), may_act, "{role:?}: {shown}");
    }
    waiting.abort();
}

// A schedule is run with its payload by a user who may put but not see it.
#[tokio::test]
async fn a_producer_runs_a_schedule_with_its_payload() {
    let fixture = server(&["*"]).await;
    create(&fixture, "mail").await;
    let token = token_of(Role::Produce, "*");
    let run = send(&fixture, &token, Method::POST, "/v1/schedules/mail/run", &json!({})).await;
    assert_eq!(run.status, 200, "{}", run.body);
    let taken = done(&fixture, Method::POST, "/v1/tubes/mail/take", json!({ "count": 2 })).await;
    assert_eq!(taken["tasks"][1]["data"], "secret", "{taken}");
}

#[tokio::test]
async fn names_in_a_body_are_checked_too() {
    let fixture = server(&["mail.*"]).await;
    create(&fixture, "mail.a").await;
    let admin = token_of(Role::Admin, "mail.*");
    let consumer = token_of(Role::Consume, "mail.*");
    let schedule = json!({ "tube": "orders", "every": 3600, "task": { "data": 1 } });
    for (token, method, path, body, name) in [
        (&admin, Method::POST, "/v1/tubes/mail.a/name", json!({ "name": "orders" }), "orders"),
        (&admin, Method::PUT, "/v1/schedules/mail.a", schedule, "orders"),
        (&admin, Method::PUT, "/v1/tubes/mail.b", json!({ "semaphore": "gpu" }), "gpu"),
        (&consumer, Method::POST, "/v1/semaphore-events", json!({ "semaphore": "gpu" }), "gpu"),
        (&consumer, Method::POST, "/v1/semaphore-events", json!({}), "*"),
        (&consumer, Method::POST, "/v1/semaphore-events/ack", json!({ "events": [1] }), "*"),
    ] {
        let answer = send(&fixture, token, method, path, &body).await;
        let message = answer.refused(403, "forbidden");
        assert!(message.contains(&format!("'{name}'")), "{message}");
    }
    let own = json!({ "semaphore": "mail.a" });
    let own = send(&fixture, &consumer, Method::POST, "/v1/semaphore-events", &own).await;
    assert_eq!(own.status, 200);
}

// A user has a quota of tubes of its own, also for tubes that a put creates.
#[tokio::test]
async fn tubes_count_for_the_user_that_created_them() {
    let users = Users::new(vec![user(Role::Produce, "*"), user(Role::Admin, "a*")]);
    let fixture = Fixture::with(|config| {
        config.users = users;
        config.tubes_per_user_max = 1;
    })
    .await;
    let put = async |role, pattern, tube| {
        let path = format!("/v1/tubes/{tube}/put");
        let token = token_of(role, pattern);
        send(&fixture, &token, Method::POST, &path, &json!({ "data": 1 })).await
    };
    assert_eq!(put(Role::Produce, "*", "one").await.status, 200);
    put(Role::Produce, "*", "two").await.refused(409, "too_many_tubes");
    assert_eq!(put(Role::Admin, "a*", "a1").await.status, 200);
}

#[tokio::test]
async fn a_guest_is_listed_for_clients_without_a_token() {
    let names = vec![NamePattern::new("open.*").unwrap()];
    let open = Grants::List(vec![Grant::roles(&[Role::Produce], names)]);
    let users = Users::new(vec![User::guest(open), user(Role::Read, "*")]);
    let fixture = Fixture::with(|config| config.users = users).await;
    fixture.done("/v1/tubes/open.a/put", json!({ "data": 1 })).await;
    let refused = fixture.post("/v1/tubes/mail/put", json!({ "data": 1 })).await;
    assert!(refused.refused(403, "forbidden").contains("user 'guest'"));
    // A wrong token is not a missing one.
    let wrong = send(&fixture, "0123456789abcdef", Method::GET, "/v1/tubes", &json!({})).await;
    wrong.refused(401, "unauthorized");
    // The rights of the guest are not for pages of other sites. A user with a token may use any name of the server; it was refused.
    let ask = async |token: Option<&str>| {
        let request = fixture.request(Method::GET, "/v1/tubes").header(HOST, "queue.example");
        let request = token.into_iter().fold(request, |request, token| request.bearer_auth(token));
        Answer::of(request.send().await.unwrap()).await
    };
    ask(None).await.refused(403, "forbidden");
    assert_eq!(ask(Some(&token_of(Role::Read, "*"))).await.status, 200);
}

// A client that guessed locked out all others behind the same address that had not logged in before.
#[tokio::test]
async fn the_token_of_a_user_is_correct_while_others_guess() {
    let fixture = server(&["*"]).await;
    let ask = async |token: &str| send(&fixture, token, Method::GET, "/v1/tubes", &json!({})).await;
    let mut guesses = 0;
    while ask(&format!("guess-{guesses:016}")).await.status != 503 {
        guesses += 1;
        assert!(guesses < 1_000, "no limit");
    }
    ask(ADMIN_TOKEN).await.refused(503, "overloaded");
    assert_eq!(ask(&token_of(Role::Read, "*")).await.status, 200);
}

// A user that was allowed to do little could try any number of tokens of others on its connection.
#[tokio::test]
async fn a_user_with_a_token_cannot_guess_others_without_limit() {
    let fixture = server(&["*"]).await;
    let read = token_of(Role::Read, "*");
    let mut guesses = 0;
    loop {
        guesses += 1;
        assert!(guesses < 1_000, "no limit");
        let own = send(&fixture, &read, Method::GET, "/v1/tubes", &json!({})).await;
        assert_eq!(own.status, 200, "the user itself is not slowed down");
        let guess = format!("guess-{guesses:016}");
        let answer = send(&fixture, &guess, Method::GET, "/v1/tubes", &json!({})).await;
        if answer.status == 503 {
            assert!(answer.headers.contains_key("retry-after"));
            break;
        }
        answer.refused(401, "unauthorized");
    }
    assert!(guesses > 10, "a few mistakes are forgiven");
}

#[tokio::test]
async fn a_new_list_of_users_applies_to_the_next_request() {
    let fixture = server(&["*"]).await;
    let (read, kept) = (token_of(Role::Read, "*"), json!({}));
    let tubes =
        async |token: &str| send(&fixture, token, Method::GET, "/v1/tubes", &kept).await.status;
    assert_eq!(tubes(&read).await, 200);
    fixture.users.replace(Users::new(vec![user(Role::Operate, "*")]));
    assert_eq!(tubes(&read).await, 401);
    assert_eq!(tubes(&token_of(Role::Operate, "*")).await, 200);
    assert_eq!(tubes(ADMIN_TOKEN).await, 200, "the token of the server stays");
}

// A take that waited already delivered the next task to a user that was removed.
#[tokio::test]
async fn the_waiting_take_of_a_user_without_the_right_ends() {
    let fixture = server(&["*"]).await;
    done(&fixture, Method::PUT, "/v1/tubes/mail", json!({})).await;
    let (token, name) = (token_of(Role::Consume, "*"), "consume of *");
    let all = vec![NamePattern::new("*").unwrap()];
    let produce = Grants::List(vec![Grant::roles(&[Role::Produce], all)]);
    for users in [vec![User::with_token(name, &token, produce)], vec![user(Role::Read, "*")]] {
        fixture.users.replace(Users::new(vec![user(Role::Consume, "*")]));
        let wait = json!({ "wait": 60 });
        let take = || send(&fixture, &token, Method::POST, "/v1/tubes/mail/take", &wait);
        // A user who keeps the right goes on waiting.
        let keep = async {
            fixture.consumers("mail", 1).await;
            fixture.users.replace(Users::new(vec![user(Role::Consume, "*")]));
            done(&fixture, Method::POST, "/v1/tubes/mail/put", json!({ "data": 1 })).await;
        };
        let (answer, ()) = tokio::join!(take(), keep);
        assert_eq!(answer.body["tasks"].as_array().map(Vec::len), Some(1), "{}", answer.body);
        let change = async {
            fixture.consumers("mail", 1).await;
            fixture.users.replace(Users::new(users));
        };
        let (answer, ()) = tokio::join!(take(), change);
        let text = answer.refused(403, "forbidden");
        assert!(text.contains("the role 'consume' for tube 'mail'"), "{text}");
        fixture.consumers("mail", 0).await;
    }
}
