//! Plants known faults in the function library of the pool, to show that the judges find them.

use crate::planted::PlantedFault;

/// How the text of the library changes.
pub fn alteration(planted: PlantedFault) -> fn(&str) -> String {
    match planted {
        // A scheduler that was paused past its lease is believed.
        PlantedFault::IgnoreLead => {
            |text| replace(text, "return lock and split(lock)[1] == number", "return true")
        }
        // A new lead has the number of the last one.
        PlantedFault::ReuseLead => |text| {
            let wanted = "redis.call('INCR', base .. 'scheduler.counter')";
            replace(text, wanted, "redis.call('GET', base .. 'scheduler.counter')")
        },
        // Backends whose lease has expired count as alive.
        PlantedFault::BelieveDeadBackends => |text| {
            let wanted = "if redis.call('EXISTS', base .. 'backend:' .. backend) == 1 then\n            count";
            replace(text, wanted, "if true then\n            count")
        },
        // The end of a run does not remove its allocation.
        PlantedFault::KeepAllocation => |text| {
            let wanted = "    free(base, id)\n    -- A gateway that has still";
            replace(text, wanted, "    -- A gateway that has still")
        },
        // Runs that backends report after a data loss are forgotten.
        PlantedFault::ForgetReports => |text| {
            replace(
                text,
                "local returns = known ~= current and not settled(base, current)",
                "local returns = false",
            )
        },
        // Tasks start before backends have reported.
        PlantedFault::StartUnsettled => |text| {
            let wanted = "return redis.call('GET', base .. 'pool.settled') == current";
            replace(text, wanted, "return true")
        },
        // It is not stored that a client saw output.
        PlantedFault::ForgetSeen => {
            |text| replace(text, "        redis.call('HSET', key, 'seen', '1')\n", "")
        }
        // A task whose backend is gone is not queued again.
        PlantedFault::LoseRequeued => |text| {
            let wanted = "redis.call('ZADD', base .. 'queue', id, id)\n    publish_to_gateway";
            replace(text, wanted, "publish_to_gateway")
        },
        // A Redis with old data looks like the one before.
        PlantedFault::BelieveOldData => |text| {
            replace(
                text,
                "if found and (not here or string.sub(found, -#here) == here) then",
                "if found then",
            )
        },
        _ => |text| text.to_owned(),
    }
}

fn replace(text: &str, wanted: &str, by: &str) -> String {
    assert!(text.contains(wanted), "the library has no longer the text {wanted:?}");
    text.replacen(wanted, by, 1)
}
