//! The Python source, run by Python against the same bytes.

use std::process::Command;

use taskyard_contract::{parse, python};

const CHECK: &str = include_str!("../check_vectors.py");

#[test]
fn python_writes_and_reads_the_same_bytes() {
    if std::env::var_os("TASKYARD_EMBEDDED").is_some() {
        println!("skipped: it needs Python");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let contract = parse(include_str!("../every_type.yaml")).unwrap();
    std::fs::write(folder.path().join("queues.py"), python(&contract)).unwrap();
    std::fs::write(folder.path().join("vectors.json"), include_str!("../vectors.json")).unwrap();
    std::fs::write(folder.path().join("check.py"), CHECK).unwrap();
    let ran = Command::new("python3").arg("check.py").current_dir(folder.path()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{err}");
    let count = super::vectors::vectors().len();
    assert_eq!(out, format!("{count} vectors\n"), "{err}");
}
