//! The output of `serve` and `stats` about Tarantool.

use crate::process::{Serving, binary, run};
use taskyard_testkit::server_process::ServerProcess;
use taskyard_testkit::tarantool::{TarantoolInstance, program};

fn serve(url: &str) -> Serving {
    Serving { process: ServerProcess::on_store(binary, url) }
}

#[test]
fn the_durability_of_tarantool_is_printed_by_serve_and_stats() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::with(program, &[("wal_mode", "write")]);
    let serving = serve(&tarantool.url());
    assert!(serving.screen.contains("power failure"), "{}", serving.screen);
    assert!(!serving.screen.contains("pass%2F"), "a password is not shown: {}", serving.screen);
    assert_eq!(serving.run(&["put", "mail", "hello"]).good().trim(), "0");
    let stats = serving.run(&["stats"]).good();
    assert!(stats.contains("power failure") && stats.contains("mail"), "{stats}");
    assert_eq!(serving.run(&["stats", "--json"]).json()[0]["tasks"]["ready"], 1);
    let task = &serving.run(&["take", "mail", "--json"]).json()[0];
    assert_eq!((&task["id"], &task["data"]), (&0.into(), &"hello".into()));
    serving.signal("TERM");
    let (status, rest) = serving.ended();
    assert!(status.success() && rest.contains("all tasks are in tarantool://"), "{status} {rest}");
    assert!(!rest.contains("pass%2F"), "{rest}");
    let again = serve(&tarantool.url());
    assert!(again.screen.contains("1 in 1 tube"), "{}", again.screen);
}

#[test]
fn errors_do_not_contain_the_password() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    for (url, why) in [
        (tarantool.url_with("taskyard:wrong@"), "password"),
        (tarantool.url_as("stranger"), "execute"),
    ] {
        let refused = run(&["serve", "--store", &url, "--http", "127.0.0.1:0"]);
        assert_ne!(refused.exit, 0);
        assert!(refused.err.contains(why), "{}", refused.err);
        assert!(
            !refused.err.contains("wrong") && !refused.err.contains("pass%2F"),
            "{}",
            refused.err
        );
    }
}

/// Without the module, a substitute answers as its documentation says.
#[test]
fn tubes_of_an_existing_queue_are_served() {
    let Some(program) = program() else { return };
    let tarantool = TarantoolInstance::new(program);
    tarantool.load_queue();
    tarantool.talk("queue.create_tube('mail', 'fifottl', {}) queue.tube.mail:put('hello')");
    let serving = serve(&tarantool.url().replace("tarantool://", "tarantool+queue://"));
    assert!(serving.screen.contains("without attempts"), "{}", serving.screen);
    let task = serving.run(&["take", "mail", "--json"]).json()[0].clone();
    assert_eq!(
        (&task["id"], &task["data"], &task["attempts"]),
        (&0.into(), &"hello".into(), &0.into())
    );
    serving.run(&["ack", "mail", &format!("0:{}", task["lease"])]).good();
    assert_eq!(serving.run(&["put", "mail", "again"]).good().trim(), "0", "the module reuses ids");
    let refused = serving.run(&["tube", "pause", "mail"]);
    assert_ne!(refused.exit, 0);
    assert!(refused.err.contains("is not supported by tarantool/queue"), "{}", refused.err);
    assert_eq!(serving.run(&["stats", "--json"]).json()[0]["tasks"]["ready"], 1);
}
