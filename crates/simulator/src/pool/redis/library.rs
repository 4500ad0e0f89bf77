//! Loads the function library of the pool into a Lua interpreter, as Redis does, and calls its functions.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value as LuaValue};
use taskyard_redis::Value;

use super::data::{Bytes, Data};

/// What functions see and change.
#[derive(Debug, Default)]
pub struct Store {
    /// All keys.
    pub data: Data,
    /// The clock, in microseconds.
    pub now_us: i64,
    /// The name of the process.
    pub run_id: String,
    /// Published messages: channel and text.
    pub published: Vec<(Bytes, Bytes)>,
}

impl Store {
    fn execute(&mut self, words: &[Bytes]) -> Value {
        let Some((name, rest)) = words.split_first() else {
            return Value::Error("ERR no command".into());
        };
        let now_ms = self.now_us / 1_000;
        match &*String::from_utf8_lossy(name) {
            "TIME" => {
                let parts = [self.now_us / 1_000_000, self.now_us % 1_000_000];
                Value::List(parts.map(|part| Value::Text(part.to_string().into())).into())
            }
            "INFO" => Value::Text(format!("# Server\r\nrun_id:{}\r\n", self.run_id).into()),
            "PUBLISH" => {
                if let [channel, text] = rest {
                    self.published.push((channel.clone(), text.clone()));
                }
                Value::Int(1)
            }
            name if name.starts_with('X') => self.data.stream_command(name, rest, now_ms),
            name => self.data.execute(name, rest, now_ms),
        }
    }
}

/// A loaded library.
pub struct LoadedLibrary {
    /// Its name.
    pub name: String,
    text: String,
    lua: Lua,
    functions: Rc<RefCell<BTreeMap<String, Function>>>,
}

impl LoadedLibrary {
    /// Loads a text that begins with `#!lua name=NAME`.
    pub fn load(text: &str, store: &Rc<RefCell<Store>>) -> Result<Self, String> {
        let (head, body) = text.split_once('\n').ok_or("ERR Missing library metadata")?;
        let name = head.strip_prefix("#!lua name=").ok_or("ERR Missing library metadata")?;
        let lua = Lua::new();
        let functions: Rc<RefCell<BTreeMap<String, Function>>> = Rc::default();
        let fill = || -> mlua::Result<()> {
            let redis = lua.create_table()?;
            let called = store.clone();
            let call = move |lua: &Lua, words: MultiValue| match called
                .borrow_mut()
                .execute(&words_of(words)?)
            {
                Value::Error(text) => Err(mlua::Error::RuntimeError(text)),
                value => to_lua(lua, value),
            };
            redis.set("call", lua.create_function(call)?)?;
            let called = store.clone();
            let call = move |lua: &Lua, words: MultiValue| {
                let value = called.borrow_mut().execute(&words_of(words)?);
                to_lua(lua, value)
            };
            redis.set("pcall", lua.create_function(call)?)?;
            redis.set("error_reply", lua.create_function(error_reply)?)?;
            let registered = functions.clone();
            let register = move |_: &Lua, args: MultiValue| register(&registered, args);
            redis.set("register_function", lua.create_function(register)?)?;
            lua.globals().set("redis", redis)?;
            lua.load(body).set_name("=user_function").exec()
        };
        fill().map_err(|error| format!("ERR Error compiling function: {error}"))?;
        Ok(LoadedLibrary { name: name.into(), text: text.into(), lua, functions })
    }

    /// Loads it again, as a process that has it on disk.
    pub fn reload(&self, store: &Rc<RefCell<Store>>) -> Result<Self, String> {
        LoadedLibrary::load(&self.text, store)
    }

    /// Calls a function with one key. The error is one of the function itself.
    pub fn call(&self, name: &str, key: &Bytes, args: &[Bytes]) -> Result<Value, String> {
        let function = self.functions.borrow().get(name).cloned();
        let Some(function) = function else {
            return Ok(Value::Error("ERR Function not found".into()));
        };
        let call = || -> mlua::Result<Value> {
            let strings = |all: &[Bytes]| {
                let all: mlua::Result<Vec<_>> =
                    all.iter().map(|bytes| self.lua.create_string(bytes)).collect();
                self.lua.create_sequence_from(all?)
            };
            let keys = strings(std::slice::from_ref(key))?;
            from_lua(function.call::<LuaValue>((keys, strings(args)?))?)
        };
        call().map_err(|error| format!("ERR user_function: {error}"))
    }
}

fn error_reply(lua: &Lua, text: String) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("err", text)?;
    Ok(table)
}

/// `register_function(name, callback)` or `register_function{function_name=, callback=}`.
fn register(functions: &RefCell<BTreeMap<String, Function>>, args: MultiValue) -> mlua::Result<()> {
    let mut args = args.into_iter();
    let (name, callback) = match (args.next(), args.next()) {
        (Some(LuaValue::String(name)), Some(LuaValue::Function(callback))) => {
            (name.to_str()?.to_owned(), callback)
        }
        (Some(LuaValue::Table(table)), None) => {
            (table.get("function_name")?, table.get("callback")?)
        }
        _ => return Err(mlua::Error::RuntimeError("wrong arguments".into())),
    };
    functions.borrow_mut().insert(name, callback);
    Ok(())
}

fn words_of(words: MultiValue) -> mlua::Result<Vec<Bytes>> {
    let word = |value: LuaValue| match value {
        LuaValue::String(text) => Ok(text.as_bytes().to_vec()),
        LuaValue::Integer(number) => Ok(number.to_string().into_bytes()),
        LuaValue::Number(number) => Ok(number.to_string().into_bytes()),
        _ => Err(mlua::Error::RuntimeError(
            "ERR Lua redis lib command arguments must be strings or integers".into(),
        )),
    };
    words.into_iter().map(word).collect()
}

fn to_lua(lua: &Lua, value: Value) -> mlua::Result<LuaValue> {
    Ok(match value {
        Value::Nil => LuaValue::Boolean(false),
        Value::Int(number) => LuaValue::Number(number as f64),
        Value::Text(text) => LuaValue::String(lua.create_string(text)?),
        Value::Error(text) => LuaValue::Table(error_reply(lua, text)?),
        Value::List(values) => {
            let values: mlua::Result<Vec<_>> =
                values.into_iter().map(|value| to_lua(lua, value)).collect();
            LuaValue::Table(lua.create_sequence_from(values?)?)
        }
    })
}

fn from_lua(value: LuaValue) -> mlua::Result<Value> {
    Ok(match value {
        LuaValue::String(text) => Value::Text(text.as_bytes().to_vec()),
        LuaValue::Integer(number) => Value::Int(number),
        LuaValue::Number(number) => Value::Int(number as i64),
        LuaValue::Boolean(true) => Value::Int(1),
        LuaValue::Table(table) => {
            if let Some(error) = table.raw_get::<Option<String>>("err")? {
                return Ok(Value::Error(error));
            }
            let mut list = Vec::new();
            // As in Redis, a list ends at the first nil.
            for index in 1.. {
                match table.raw_get::<LuaValue>(index)? {
                    LuaValue::Nil => break,
                    item => list.push(from_lua(item)?),
                }
            }
            Value::List(list)
        }
        _ => Value::Nil,
    })
}
