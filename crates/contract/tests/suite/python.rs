//! The generated Python source, run by Python with the same test vectors.

use std::process::Command;

use taskyard_contract::{parse, python};

use crate::skipped::find_tool;

const CHECK: &str = include_str!("../check_vectors.py");

#[test]
fn python_encodes_and_decodes_the_same_bytes() {
    let Some(python3) = find_tool("TASKYARD_PYTHON", "/usr/bin/python3") else { return };
    let folder = tempfile::tempdir().unwrap();
    let contract = parse(include_str!("../every_type.yaml")).unwrap();
    std::fs::write(folder.path().join("queues.py"), python(&contract)).unwrap();
    std::fs::write(folder.path().join("vectors.json"), include_str!("../vectors.json")).unwrap();
    std::fs::write(folder.path().join("check.py"), CHECK).unwrap();
    let ran = Command::new(python3).arg("check.py").current_dir(folder.path()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{err}");
    let count = super::vectors::vectors().len();
    assert_eq!(out, format!("{count} vectors\n"), "{err}");
}

/// A field `classmethod` shadowed the builtin in its class, so that the file could not be imported; a field `int` shadowed
/// the type in the annotations after it.
#[test]
fn fields_may_have_names_of_python_builtins() {
    let Some(python3) = find_tool("TASKYARD_PYTHON", "/usr/bin/python3") else { return };
    let field = |name: &str, kind: &str| format!("      - {{name: {name}, type: \"{kind}\"}}\n");
    let names = ["int", "classmethod", "str", "bytes", "bool", "list", "dataclass", "struct"];
    let fields: String = names.iter().map(|name| field(name, "int")).collect();
    let text = format!(
        "queues:\n  - id: 1\n    name: odd\n    fields:\n{fields}{}{}",
        field("numbers", "[]int"),
        field("text", "string"),
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("queues.py"), python(&parse(&text).unwrap())).unwrap();
    let check = "from queues import OddTask\n\
                 task = OddTask(int=1, classmethod_=2, numbers=[3], text='x')\n\
                 assert OddTask.decode(task.encode()) == task\n";
    let ran = Command::new(python3).args(["-c", check]).current_dir(folder.path()).output();
    let ran = ran.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
