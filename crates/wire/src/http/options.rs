//! Checks which options a kind of tube has.

use taskyard_core::{Error, Kind, Result, TubeOptions};

/// Refuses options that a tube of this kind would silently ignore, and a limited tube without its
/// limit. The core accepts them, because clients of Tarantool's queue send them; over HTTP they are
/// probably a mistake.
pub fn check_options(options: &TubeOptions) -> Result<()> {
    let kind = options.kind;
    if kind == Kind::LimFifoTtl && options.capacity.is_none() {
        return Err(Error::Invalid(
            "a limfifottl tube needs a capacity (on the command line: give --capacity); without a \
             limit it is a fifottl tube"
                .into(),
        ));
    }
    let given = [
        ("ttl", options.ttl.is_some()),
        ("ttr", options.ttr.is_some()),
        ("delay", options.delay.is_some()),
        ("pri", options.pri != 0),
        ("ttl_kills_taken", options.ttl_kills_taken),
    ];
    match given.into_iter().find(|(_, given)| *given && !kind.has_times()) {
        Some((option, _)) => Err(Error::Invalid(format!(
            "a {} tube has no {option}; make it a {} tube or leave that out",
            kind.name(),
            with_times(kind).name(),
        ))),
        None => Ok(()),
    }
}

/// The corresponding kind with times.
const fn with_times(kind: Kind) -> Kind {
    if kind.has_subqueues() { Kind::UtubeTtl } else { Kind::FifoTtl }
}
