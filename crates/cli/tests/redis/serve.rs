//! The output of `serve` and `stats` about Redis.

use crate::process::{Serving, binary, run};
use taskyard_testkit::redis::{DURABLE, RedisInstance, program};
use taskyard_testkit::server_process::ServerProcess;

fn serve(url: &str) -> Serving {
    Serving { process: ServerProcess::on_store(binary, url) }
}

#[test]
fn the_durability_of_redis_is_printed_by_serve_and_stats() {
    let Some(program) = program() else { return };
    let second = ["--appendfsync", "everysec"];
    let redis = RedisInstance::with(program, &[DURABLE, &second].concat());
    let serving = serve(&redis.url());
    assert!(serving.screen.contains("may lose the last second"), "{}", serving.screen);
    assert_eq!(serving.run(&["put", "mail", "hello"]).good().trim(), "0");
    let stats = serving.run(&["stats"]).good();
    assert!(stats.contains("may lose the last second") && stats.contains("mail"), "{stats}");
    assert_eq!(serving.run(&["stats", "--json"]).json()[0]["tasks"]["ready"], 1);
    serving.signal("TERM");
    let (status, rest) = serving.ended();
    assert!(status.success() && rest.contains("all tasks are in redis://"), "{status} {rest}");
    let again = serve(&redis.url());
    assert!(again.screen.contains("1 in 1 tube"), "{}", again.screen);
}

#[test]
fn a_password_is_not_shown() {
    let Some(program) = program() else { return };
    let redis = RedisInstance::with_password(program, DURABLE);
    let serving = serve(&redis.url());
    assert!(!serving.screen.contains("pass%2F"), "{}", serving.screen);
    let wrong = redis.url_with(":wrong@");
    let refused = run(&["serve", "--store", &wrong, "--http", "127.0.0.1:0"]);
    assert_ne!(refused.exit, 0);
    assert!(
        refused.err.contains("WRONGPASS") && !refused.err.contains("wrong@"),
        "{}",
        refused.err
    );
}
