//! Encodes the options of a tube that matter for a replay.

use taskyard_core::{Kind, RateLimit, RetryPolicy, SemaphoreKey, TubeOptions};

use crate::codec::{EventReader, Malformed, flags_of, micros, put_number, put_some, put_text};

const HAS_TTL: u8 = 1;
const HAS_TTR: u8 = 2;
const HAS_DELAY: u8 = 4;
const HAS_ATTEMPTS: u8 = 8;
const HAS_RETRY: u8 = 16;
const HAS_RATE: u8 = 32;
const HAS_SEMAPHORE: u8 = 64;

const IS_PAUSED: u8 = 1;
const TTL_KILLS_TAKEN: u8 = 2;

/// Appends options.
pub(crate) fn put_options(out: &mut Vec<u8>, options: &TubeOptions) {
    let kind = Kind::ALL.iter().position(|kind| *kind == options.kind).unwrap_or_default();
    out.push(kind as u8);
    out.push(flags_of(&[(IS_PAUSED, options.paused), (TTL_KILLS_TAKEN, options.ttl_kills_taken)]));
    out.push(flags_of(&[
        (HAS_TTL, options.ttl.is_some()),
        (HAS_TTR, options.ttr.is_some()),
        (HAS_DELAY, options.delay.is_some()),
        (HAS_ATTEMPTS, options.attempts_max.is_some()),
        (HAS_RETRY, options.retry.is_some()),
        (HAS_RATE, options.rate.is_some()),
        (HAS_SEMAPHORE, options.semaphore.is_some()),
    ]));
    put_number(out, options.pri);
    for span in [options.ttl, options.ttr, options.delay] {
        put_some(out, span.map(micros));
    }
    put_some(out, options.attempts_max.map(u64::from));
    if let Some(retry) = &options.retry {
        put_number(out, micros(retry.delay));
        put_number(out, u64::from(retry.factor_permille));
        put_number(out, micros(retry.delay_max));
        put_number(out, u64::from(retry.jitter_permille));
        out.push(u8::from(retry.retry_lost));
    }
    if let Some(rate) = &options.rate {
        put_number(out, u64::from(rate.count));
        put_number(out, micros(rate.per));
        put_number(out, u64::from(rate.burst));
    }
    if let Some(semaphore) = &options.semaphore {
        put_text(out, semaphore.as_str());
    }
}

/// Reads options, which are checked as those of a tube.
pub(crate) fn read_options(reader: &mut EventReader<'_>) -> Result<TubeOptions, Malformed> {
    let kind =
        Kind::ALL.get(usize::from(reader.byte()?)).ok_or(Malformed("unknown kind of tube"))?;
    let (traits, flags) = (reader.byte()?, reader.byte()?);
    let pri = reader.number()?;
    let (ttl, ttr, delay) = (
        reader.span_if(flags & HAS_TTL)?,
        reader.span_if(flags & HAS_TTR)?,
        reader.span_if(flags & HAS_DELAY)?,
    );
    let attempts_max = reader.small_if(flags & HAS_ATTEMPTS)?;
    let retry = if flags & HAS_RETRY == 0 { None } else { Some(Box::new(read_retry(reader)?)) };
    let rate = if flags & HAS_RATE == 0 { None } else { Some(Box::new(read_rate(reader)?)) };
    let semaphore = match flags & HAS_SEMAPHORE {
        0 => None,
        _ => {
            let key = SemaphoreKey::new(reader.text()?);
            Some(key.map_err(|_| Malformed("the name of a semaphore is invalid"))?)
        }
    };
    let options = TubeOptions {
        ttl,
        ttr,
        delay,
        pri,
        attempts_max,
        retry,
        rate,
        ttl_kills_taken: traits & TTL_KILLS_TAKEN != 0,
        paused: traits & IS_PAUSED != 0,
        semaphore,
        ..TubeOptions::new(*kind)
    };
    options.check().map_err(|_| Malformed("the options of a tube are invalid"))?;
    Ok(options)
}

fn read_retry(reader: &mut EventReader<'_>) -> Result<RetryPolicy, Malformed> {
    Ok(RetryPolicy {
        delay: reader.span()?,
        factor_permille: reader.small()?,
        delay_max: reader.span()?,
        jitter_permille: reader.small()?,
        retry_lost: reader.byte()? != 0,
    })
}

fn read_rate(reader: &mut EventReader<'_>) -> Result<RateLimit, Malformed> {
    Ok(RateLimit { count: reader.small()?, per: reader.span()?, burst: reader.small()? })
}
