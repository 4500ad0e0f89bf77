//! All limits of the system.

/// Longest tube name, in bytes.
pub const TUBE_NAME_BYTES_MAX: usize = 128;
/// Longest sub-queue key, in bytes.
pub const SUBQUEUE_BYTES_MAX: usize = 256;
/// Maximum number of tubes in one store.
pub const TUBES_MAX: usize = 10_000;
/// Tubes have numbers below this: what fits beside a task id in one SQLite key.
pub const TUBE_NUMBERS_MAX: u32 = 1 << 14;
/// Default for the largest payload, in bytes.
pub const PAYLOAD_BYTES_DEFAULT: usize = 1 << 20;
/// Largest payload an operator may allow, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// Largest `meta` map of a task, in bytes.
pub const META_BYTES_MAX: usize = 1 << 10;
/// Maximum number of tasks in one command.
pub const BATCH_TASKS_MAX: usize = 10_000;
/// Maximum payload bytes in one command.
pub const BATCH_BYTES_MAX: usize = 64 << 20;
/// Maximum number of tasks in one page of a list.
pub const LIST_TASKS_MAX: usize = 1_000;
/// Maximum number of bytes that a search asks a store to compare payloads with.
pub const SEARCH_RUN_BYTES_MAX: usize = 256;
/// Longest version of the client of a worker, in bytes.
pub const CLIENT_VERSION_BYTES_MAX: usize = 32;
/// Longest name of a worker, in bytes.
pub const WORKER_BYTES_MAX: usize = 128;
/// Longest stored error of a failed delivery, in bytes.
pub const ERROR_BYTES_MAX: usize = 1 << 10;
/// Largest result of a done task, in bytes.
pub const RESULT_BYTES_MAX: usize = 64 << 10;
/// Longest key of a task, in bytes.
pub const KEY_BYTES_MAX: usize = 128;
/// Longest time for which a key stays held after the end of its task, in seconds: seven days.
pub const UNIQUE_FOR_SECS_MAX: u64 = 7 * 24 * 3600;
/// Maximum number of keys of ended tasks that a tube remembers.
pub const ENDED_KEYS_MAX: usize = 1_000_000;
/// Default for the number of done tasks that a tube keeps.
pub const KEEP_DONE_DEFAULT: u64 = 10_000;
/// Largest number of done tasks that a tube can keep.
pub const KEEP_DONE_MAX: u64 = 10_000_000;
/// How many of its latest failures a task keeps.
pub const FAILURES_MAX: usize = 5;
/// Deepest nesting of a payload.
pub const NESTING_MAX: usize = 64;
/// Maximum number of open connections of a server.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Maximum number of TLS handshakes in progress for one address of a server.
pub const TLS_HANDSHAKES_MAX: usize = 1_000;
/// Maximum number of waiting takes and puts of a server.
pub const WAITERS_MAX: usize = 100_000;
/// Maximum number of commands queued for the engine; more are refused as overload.
pub const PENDING_COMMANDS_MAX: usize = 100_000;
/// Maximum number of tasks in the commands queued for the engine.
pub const PENDING_ITEMS_MAX: usize = 100 * BATCH_TASKS_MAX;
/// Maximum payload bytes queued for the engine.
pub const PENDING_BYTES_MAX: usize = 256 << 20;
/// Maximum bytes of HTTP requests that a server receives at once. An eighth of it is for small
/// requests only.
pub const REQUEST_BYTES_TOTAL_MAX: usize = 256 << 20;
/// A larger HTTP request that is being received may only use what the others leave free.
pub const REQUEST_BYTES_SHARE: usize = 16 << 20;
/// Maximum bytes of HTTP responses that all clients together have not read yet.
pub const ANSWER_BYTES_TOTAL_MAX: usize = 256 << 20;
/// Largest HTTP response, and so the most that one connection may leave unread: a full batch as
/// base64 and the JSON around it.
pub const ANSWER_BYTES_MAX: usize = 128 << 20;
/// HTTP requests and responses up to this many bytes are small: they are accepted while large ones
/// are refused.
pub const SMALL_BYTES_MAX: usize = 64 << 10;
/// Shortest token, in characters.
pub const TOKEN_CHARS_MIN: usize = 16;
/// Longest token, in characters.
pub const TOKEN_CHARS_MAX: usize = 512;
/// Largest file of users, in bytes.
pub const USERS_FILE_BYTES_MAX: usize = 4 << 20;
/// Largest configuration file of a server, in bytes.
pub const CONFIG_FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of users.
pub const USERS_MAX: usize = 10_000;
/// Longest name of a user, in bytes.
pub const USER_NAME_BYTES_MAX: usize = 128;
/// Maximum number of name patterns of one user.
pub const USER_PATTERNS_MAX: usize = 100;
/// Longest pattern for names, in bytes.
pub const NAME_PATTERN_BYTES_MAX: usize = 256;
/// Maximum number of user names, at all client addresses together, whose logins are remembered.
pub const LOGIN_PEERS_MAX: usize = 10_000;
/// Maximum number of user names at one client address whose logins are remembered separately.
pub const LOGIN_USERS_PER_PEER_MAX: usize = 16;
/// Maximum number of sessions of users who signed in on the page.
pub const PAGE_SESSIONS_MAX: usize = 10_000;
/// Maximum number of sessions of one user who signed in on the page.
pub const PAGE_SESSIONS_PER_USER_MAX: usize = 50;
/// Longest session of a user who signed in on the page, in seconds.
pub const PAGE_SESSION_SECS_MAX: u64 = 12 * 60 * 60;
/// Largest request to sign in, in bytes: it is read before the user is known.
pub const SIGN_IN_BYTES_MAX: usize = 4 << 10;
/// Maximum bytes of requests to sign in that are received at once.
pub const SIGN_IN_BYTES_TOTAL_MAX: usize = 4 << 20;
/// Default for the number of tubes that one user may create on a server.
pub const TUBES_PER_USER_MAX: usize = 5_000;
/// The last tubes of a store, which only an administrator and the server itself may create.
pub const TUBES_RESERVED: usize = 500;
/// Default for the number of tubes with their own rows in `/metrics`.
pub const METRICS_TUBES_MAX: usize = 1_000;
/// Maximum number of rows in `/metrics`.
pub const METRICS_ROWS_MAX: usize = 50_000;
/// Maximum number of tubes with their own histograms in `/metrics`: each has over fifty rows.
pub const METRICS_HISTOGRAMS_MAX: usize = 250;
/// Default for the number of tubes with time series.
pub const SERIES_TUBES_MAX: usize = 1_000;
/// Maximum number of other servers that a server asks for time series and workers.
pub const PEERS_MAX: usize = 32;
/// Largest answer of such a server, in bytes.
pub const PEER_ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest key of a semaphore, in bytes.
pub const SEMAPHORE_KEY_BYTES_MAX: usize = 128;
/// Maximum number of semaphores in one store.
pub const SEMAPHORES_MAX: usize = 100_000;
/// Maximum number of grants of one semaphore at the same time.
pub const SEMAPHORE_ACTIVE_MAX: u32 = 10_000_000;
/// Maximum number of holders of one semaphore that may be asked to release at the same time: to
/// find the task that the next one is asked for, as many waiting tasks are skipped.
pub const SEMAPHORE_REVOKING_MAX: u32 = 10_000;
/// Maximum number of admission steps of a semaphore in one command; the next tick does the rest.
pub const ADMIT_STEPS_MAX: usize = 20_000;
/// How many waiting tasks may be skipped at the cost of one step.
pub const ADMIT_STEP_PLACES: usize = 64;
/// Longest delay of a retry policy before its jitter, in seconds.
pub const RETRY_DELAY_SECS_MAX: u64 = 30 * 24 * 3600;
/// Largest factor of a retry policy, in thousandths.
pub const RETRY_FACTOR_PERMILLE_MAX: u32 = 100_000;
/// Largest jitter of a retry policy, in thousandths.
pub const RETRY_JITTER_PERMILLE_MAX: u32 = 1_000;
/// How often the delay of a retry policy is multiplied by its factor; then it stays the same.
pub const RETRY_GROWTH_MAX: u32 = 1_000;
/// Most tokens that a rate limit adds in its time.
pub const RATE_COUNT_MAX: u32 = 1_000_000;
/// Longest time of a rate limit, in seconds. Together with the largest burst, the level of a bucket
/// is less than 2^53.
pub const RATE_PER_SECS_MAX: u64 = 24 * 3600;
/// Most tokens that a rate limit can save.
pub const RATE_BURST_MAX: u32 = 100_000;
/// Maximum number of schedules in one store.
pub const SCHEDULES_MAX: usize = 100_000;
/// Longest name of a schedule, in bytes.
pub const SCHEDULE_NAME_BYTES_MAX: usize = 128;
/// Longest rule of a schedule, in bytes.
pub const SCHEDULE_TIMING_BYTES_MAX: usize = 512;
/// Largest payload and meta of the task that a schedule adds, in bytes together.
pub const SCHEDULE_TEMPLATE_BYTES_MAX: usize = 64 << 10;
/// Maximum number of tasks that a schedule adds at once.
pub const SCHEDULE_PUTS_MAX: usize = 1_000;
/// Shortest interval of a schedule, in seconds.
pub const SCHEDULE_EVERY_SECS_MIN: u64 = 1;
/// Maximum number of schedules in one reply.
pub const SCHEDULES_LISTED_MAX: usize = 1_000;
/// Maximum number of tasks examined to find the one that has been ready for longest.
pub const OLDEST_LOOKED_MAX: usize = 256;
/// Maximum number of tasks whose positions one command shows.
pub const POSITIONS_MAX: usize = 100;
/// Maximum number of ready tasks that a database counts exactly for the position of a task.
pub const AHEAD_COUNTED_MAX: usize = 2_000;
/// Maximum number of ready tasks of a sub-queue that a database counts exactly for the position of a task.
pub const SUBQUEUE_COUNTED_MAX: usize = 10_000;
/// Maximum number of delayed tasks that are counted for the position of a task.
pub const DELAYED_LOOKED_MAX: usize = 10_000;
/// Maximum number of waiting members of a semaphore that are counted for the position of a task.
pub const GATE_LOOKED_MAX: usize = 100_000;
/// Largest task id: what fits beside a tube number in one SQLite key.
pub const TASK_ID_MAX: u64 = (1 << 49) - 1;
/// Maximum number of duration classes of one pool.
pub const CLASSES_MAX: usize = 8;
/// Default for the number of waiting tasks of one pool.
pub const POOL_QUEUE_MAX: usize = 100_000;
/// Maximum size of the embedded store's write-ahead log, in bytes, while another program prevents
/// its reset; then writes are refused.
pub const LOG_BYTES_MAX: u64 = 1 << 30;
/// How many of the latest audit entries a server keeps in memory.
pub const AUDIT_ENTRIES_MAX: usize = 1_000;
/// Longest text in an audit entry, in bytes; longer ones are cut.
pub const AUDIT_TEXT_BYTES_MAX: usize = 300;
/// Longest line of an audit file, in bytes: all texts at their limit and escaped.
pub const AUDIT_LINE_BYTES_MAX: usize = 16 << 10;
/// How many audit entries may wait to be written to the file.
pub const AUDIT_WAITING_MAX: usize = 1_000;
/// How many refused attempts of one user get an audit entry in a minute; others are counted.
pub const AUDIT_REFUSED_PER_MINUTE_MAX: u64 = 60;
/// Memory for recorded events that are not written to the trace yet, in bytes; further events are dropped and counted.
pub const TRACE_BUFFER_BYTES: usize = 4 << 20;
/// Default for the maximum size of a trace, in bytes.
pub const TRACE_BYTES_DEFAULT: u64 = 1 << 30;
/// Maximum number of tasks in a trace that is replayed.
pub const TRACE_TASKS_MAX: usize = 50_000_000;
/// Largest block of a backup: a row with the largest payload, and what else a row may have.
pub const BACKUP_BLOCK_BYTES_MAX: usize = PAYLOAD_BYTES_MAX + (32 << 20);
/// A backup ends when the write-ahead log has one part in so many of its maximum: its read transaction keeps the log.
pub const BACKUP_LOG_PART: i32 = 2;
