//! Tests of the servers that the other tests use.

use taskyard_tarantool::LuaValue;

use taskyard_testkit::tarantool::{TarantoolInstance, program};

#[test]
fn acknowledged_writes_survive_a_kill() {
    let Some(program) = program() else { return };
    let instance = TarantoolInstance::new(program);
    instance.talk("box.schema.space.create('s'):create_index('i') box.space.s:insert{7}");
    instance.kill();
    instance.start();
    instance.signal("STOP");
    instance.signal("CONT");
    assert_eq!(instance.talk("return box.space.s:len()"), LuaValue::Int(1));
    assert!(instance.url().ends_with(&instance.port().to_string()));
}

#[test]
fn a_replica_follows_and_cannot_be_written_to() {
    let Some(program) = program() else { return };
    let [master, replica] = TarantoolInstance::pair(&program);
    master.talk("box.schema.space.create('s'):create_index('i') box.space.s:insert{7}");
    let arrived =
        "return box.space.s ~= nil and box.space.s.index.i ~= nil and box.space.s:len() == 1";
    while replica.talk(arrived) != LuaValue::Bool(true) {}
    assert_eq!(replica.talk("return box.info.ro"), LuaValue::Bool(true));
    assert_eq!(master.talk("return box.info.ro"), LuaValue::Bool(false));
}

#[test]
fn a_killed_master_joins_again() {
    let Some(program) = program() else { return };
    let [old, new] = TarantoolInstance::pair(&program);
    old.kill();
    new.talk("box.cfg{read_only = false}");
    old.forget();
    old.start_as_replica();
    new.talk("box.schema.space.create('s'):create_index('i') box.space.s:insert{7}");
    let arrived =
        "return box.space.s ~= nil and box.space.s.index.i ~= nil and box.space.s:len() == 1";
    while old.talk(arrived) != LuaValue::Bool(true) {}
    assert_eq!(old.talk("return box.info.ro"), LuaValue::Bool(true));
}
