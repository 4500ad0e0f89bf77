//! A killed server: what was acknowledged is not lost.

use crate::process::Serving;

#[test]
fn nothing_acknowledged_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut acked = Vec::new();
    let mut put = 0;
    for round in 0..3 {
        let serving = Serving::folder(folder.path(), &[]);
        let lines: String = (0..50).map(|n| format!("{round}-{n}\n")).collect();
        let ids = serving.run_with(&["put", "mail", "--lines"], &lines).good();
        put += ids.lines().count();
        // Some are acked, some are only taken when the server is killed.
        let taken = serving.run(&["take", "mail", "--count", "20", "--json"]).json();
        let names: Vec<String> =
            taken.iter().take(10).map(|t| format!("{}:{}", t["id"], t["lease"])).collect();
        let mut args = vec!["ack", "mail"];
        args.extend(names.iter().map(String::as_str));
        serving.run(&args).good();
        acked.extend(taken.iter().take(10).map(|task| task["id"].as_u64().unwrap()));
        serving.signal("KILL");
        assert!(!serving.ended().0.success());
    }
    let serving = Serving::folder(folder.path(), &[]);
    let left = serving.run(&["take", "mail", "--count", "1000", "--json"]).json();
    let left: Vec<u64> = left.iter().map(|task| task["id"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (0..put as u64).filter(|id| !acked.contains(id)).collect();
    assert_eq!(left, expected);
}
