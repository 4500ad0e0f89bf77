//! `serve --peer`: servers of one Redis show what all of them did, over HTTP, on the command line and
//! on the dashboard.

use std::net::TcpListener;
use std::path::Path;

use serde_json::Value;
use taskyard_testkit::chromium::browse;
use taskyard_testkit::recorded_output::register_secret;
use taskyard_testkit::redis::{RedisInstance, program};

use crate::process::{Serving, TOKEN, binary, http_get, http_post, run, token_file};

/// Starts a server with these options.
fn serve(store: &str, options: &[&str]) -> Serving {
    let mut command = binary();
    command.args(["serve", "--http", "127.0.0.1:0", "--iproto", "off", "--store", store]);
    Serving::start(command.args(options))
}

/// The body of the answer to a GET.
fn get(server: &Serving, path: &str) -> Value {
    let answer = http_get(&server.url, path);
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer has a body");
    serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"))
}

fn total(series: &Value, field: &str) -> u64 {
    let values = series[field].as_array().unwrap_or_else(|| panic!("{series}")).iter();
    values.filter_map(Value::as_u64).sum()
}

/// Puts, takes and acknowledges a task as this worker.
fn work(server: &Serving, worker: &str) {
    server.run(&["put", "mail", "hello"]).good();
    let taken = server.run(&["take", "mail", "--worker", worker, "--json"]).json();
    let (id, lease) = (&taken[0]["id"], &taken[0]["lease"]);
    server.run(&["ack", "mail", &format!("{id}:{lease}")]).good();
}

#[test]
fn servers_show_what_all_of_them_did() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let other = serve(&redis.url(), &[]);
    let own = serve(&redis.url(), &["--peer", &other.url]);
    work(&own, "w1:1:near");
    for _ in 0..2 {
        work(&other, "w2:2:far");
    }
    let tasks = vec![r#"{"data":1}"#; 40].join(",");
    http_post(&other.url, "/v1/tubes/mail/put", &format!(r#"{{"tasks":[{tasks}]}}"#));
    while total(&get(&own, "/v1/series?tube=mail"), "acks") < 1 {}
    let mut series = get(&own, "/v1/series?tube=mail&all=true");
    while total(&series, "puts") < 43 {
        series = get(&own, "/v1/series?tube=mail&all=true");
    }
    assert_eq!((total(&series, "acks"), total(&series, "takes")), (3, 3));
    assert_eq!((&series["servers"], series.get("missing")), (&2.into(), None));
    assert_eq!(total(&get(&own, "/v1/series?tube=mail"), "acks"), 1, "its own");
    let workers = own.run(&["workers", "--json"]).json();
    let done: Vec<_> = workers.iter().map(|one| (&one["name"], &one["done"])).collect();
    assert_eq!(done, [(&"w1:1:near".into(), &1.into()), (&"w2:2:far".into(), &2.into())]);
    see_page(&own, other);
    let series = get(&own, "/v1/series?tube=mail&all=true");
    assert_eq!((total(&series, "acks"), &series["servers"]), (1, &1.into()));
    let workers = own.run(&["workers"]);
    assert!(workers.err.contains("without what http://127.0.0.1:"), "{workers:?}");
    assert!(!workers.good().contains("w2:2:far"));
}

/// Looks at the dashboard of one server, also when the other one is killed.
fn see_page(own: &Serving, other: Serving) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (page_url, url) = (format!("{}/tubes/mail?show=charts", own.url), other.url.clone());
    runtime.expect("a runtime starts").block_on(browse(&page_url, async |page| {
        page.until("document.querySelectorAll('.chart').length === 4").await;
        page.until("document.querySelector('.note.missing').hidden").await;
        // The highest rate of puts: one request to the other server.
        page.until("Number(text('.legend tbody tr td:nth-child(4)')) >= 40").await;
        page.open(&format!("{}/workers", own.url)).await;
        page.until("text('.workers').includes('w1:1:near')").await;
        page.until("text('.workers').includes('w2:2:far')").await;
        drop(other);
        page.until(&format!("text('.note.missing').startsWith('Not included: {url} (')")).await;
        page.until("!text('.workers').includes('w2:2:far')").await;
        page.open(&page_url).await;
        page.until(&format!("text('.note.missing').startsWith('Not included: {url} (')")).await;
        page.picture("peers").await;
        assert_eq!(page.complaints().await, [] as [String; 0]);
    }));
}

#[test]
fn peers_are_asked_with_their_own_token_and_users_see_what_they_may() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::new(program);
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let users = text(&folder.path().join("users.toml"));
    let reader = |name: &str, tubes: &str| {
        let add = ["user", "add", name, "--role", "read", "--tube", tubes, "--users", &users];
        let token = run(&add).good().trim().to_owned();
        register_secret(&token);
        let path = folder.path().join(name);
        std::fs::write(&path, &token).expect("a file can be written");
        make_private(&path);
        text(&path)
    };
    let (peer_file, mail_file) = (reader("peer", "*"), reader("mailer", "mail"));
    let admin = token_file(folder.path());
    let options = ["--users", &users, "--token-file", &admin];
    let other = serve(&redis.url(), &options);
    let peers = ["--peer", &other.url, "--peer-token-file", &peer_file];
    let own = serve(&redis.url(), &[&options[..], &peers].concat());
    for (server, tube) in [(&own, "mail"), (&other, "mail"), (&other, "pay")] {
        server.run(&["put", tube, "hello", "--token", TOKEN]).good();
        server.run(&["take", tube, "--worker", tube, "--token", TOKEN]).good();
    }
    let shown = own.run(&["workers", "--json", "--token-file", &mail_file]).json();
    let names: Vec<_> = shown.iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["mail"]);
    let all = own.run(&["workers", "--json", "--token", TOKEN]).json();
    assert_eq!(all.len(), 2);
    // Without a token of its own the peer refuses.
    let without = serve(&redis.url(), &[&options[..], &["--peer", &other.url]].concat());
    let refused = without.run(&["workers", "--token-file", &mail_file]);
    assert!(refused.err.contains("without what peer 1 saw"), "{refused:?}");
    let refused = without.run(&["workers", "--token", TOKEN]);
    assert!(refused.err.contains("without what http://127.0.0.1:"), "{refused:?}");
}

#[test]
fn wrong_peers_are_refused() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let store = format!("redis://{}", closed.local_addr().expect("an address"));
    let refused = |store: &str, options: &[&str]| {
        run(&[&["serve", "--http", "127.0.0.1:0", "--store", store], options].concat()).ends(2).err
    };
    assert!(refused("memory:", &["--peer", "box7"]).contains("one server only"));
    assert!(refused(&store, &["--peer", "ftp://box7"]).contains("not the URL of a server"));
    let many = ["--peer", "box7"].repeat(33);
    assert!(refused(&store, &many).contains("at most 32"));
    assert!(refused(&store, &["--peer-ca", "x.pem"]).contains("--peer"));
}

fn text(path: &Path) -> String {
    path.to_str().expect("paths of tests are text").into()
}

fn make_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, mode).expect("the mode can be set");
}
