//! The module tarantool/queue in a server, for tests of existing queues: the module itself where it is installed, else a substitute.

use std::env;
use std::path::Path;

use taskyard_tarantool::LuaValue;

use super::instance::TarantoolInstance;
use crate::skipped::skip;

/// The variable that names the folder of the module, which has `queue/init.lua`.
const VARIABLE: &str = "TASKYARD_TARANTOOL_QUEUE";

/// The substitute.
const SUBSTITUTE: &str = include_str!("queue.lua");

impl TarantoolInstance {
    /// Loads the module as the global `queue`. A run with the substitute is in the list of skipped tests.
    pub fn load_queue(&self) {
        let lua = match env::var_os(VARIABLE) {
            Some(folder) => load(Path::new(&folder)),
            None => {
                skip(format_args!(
                    "{VARIABLE} names no folder of tarantool/queue; a substitute was used"
                ));
                SUBSTITUTE.to_owned()
            }
        };
        assert_eq!(self.talk(&lua), LuaValue::Bool(true));
    }
}

/// Lua that loads the module of a folder.
fn load(folder: &Path) -> String {
    let module = folder.join("queue/init.lua");
    assert!(module.exists(), "{VARIABLE}: there is no {}", module.display());
    let folder = folder.canonicalize().expect("the folder is there");
    let folder = folder.to_str().expect("paths of tests are text");
    format!(
        "package.path = [[{folder}/?.lua;{folder}/?/init.lua;]] .. package.path
         rawset(_G, 'queue', require('queue'))
         return queue.state() == 'RUNNING'"
    )
}
