//! Every limit of the system, in one place.

/// Longest tube name, in bytes.
pub const TUBE_NAME_BYTES_MAX: usize = 128;
/// Longest sub-queue key, in bytes.
pub const SUBQUEUE_BYTES_MAX: usize = 256;
/// Most tubes in one store.
pub const TUBES_MAX: usize = 10_000;
/// Tubes have numbers below this: what fits beside a task id in one SQLite key.
pub const TUBE_NUMBERS_MAX: u32 = 1 << 14;
/// Largest payload unless the operator sets another, in bytes.
pub const PAYLOAD_BYTES_DEFAULT: usize = 1 << 20;
/// Largest payload an operator may allow, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;
/// Largest `meta` map of a task, in bytes.
pub const META_BYTES_MAX: usize = 1 << 10;
/// Most tasks in one command.
pub const BATCH_TASKS_MAX: usize = 10_000;
/// Most payload bytes in one command.
pub const BATCH_BYTES_MAX: usize = 64 << 20;
/// Deepest nesting of a payload.
pub const NESTING_MAX: usize = 64;
/// Most open connections of a server.
pub const CONNECTIONS_MAX: usize = 10_000;
/// Most parked takes and puts of a server.
pub const WAITERS_MAX: usize = 100_000;
/// Most commands waiting before the writer; more are answered "overloaded".
pub const PENDING_COMMANDS_MAX: usize = 100_000;
/// Most tasks that the commands waiting before the writer may name together.
pub const PENDING_ITEMS_MAX: usize = 100 * BATCH_TASKS_MAX;
/// Most payload bytes waiting before the writer.
pub const PENDING_BYTES_MAX: usize = 256 << 20;
/// Most bytes of HTTP requests that a server receives at once. An eighth of it is for small requests alone.
pub const REQUEST_BYTES_TOTAL_MAX: usize = 256 << 20;
/// From here on one HTTP request that is being received may only use what the others leave free.
pub const REQUEST_BYTES_SHARE: usize = 16 << 20;
/// Most bytes of HTTP answers that all clients together have not read yet.
pub const ANSWER_BYTES_TOTAL_MAX: usize = 256 << 20;
/// Largest HTTP answer, and so the most that one connection may leave unread: a full batch as base64 and what
/// stands around it.
pub const ANSWER_BYTES_MAX: usize = 128 << 20;
/// HTTP requests and answers up to this many bytes are small: they get through while large ones are refused.
pub const SMALL_BYTES_MAX: usize = 64 << 10;
/// Shortest token, in characters.
pub const TOKEN_CHARS_MIN: usize = 16;
/// Longest token, in characters.
pub const TOKEN_CHARS_MAX: usize = 512;
/// Most peer addresses whose failed logins are remembered.
pub const LOGIN_PEERS_MAX: usize = 10_000;
/// Most tubes that one user may create on a server, unless the operator sets another number.
pub const TUBES_PER_USER_MAX: usize = 5_000;
/// How many of the last tubes of a store only an administrator and the server itself may create.
pub const TUBES_RESERVED: usize = 500;
/// How many tubes have rows of their own in `/metrics`, unless the operator sets another number.
pub const METRICS_TUBES_MAX: usize = 1_000;
/// Most rows in `/metrics`.
pub const METRICS_ROWS_MAX: usize = 50_000;
/// Longest key of a semaphore, in bytes.
pub const SEMAPHORE_KEY_BYTES_MAX: usize = 128;
/// Most semaphores in one store.
pub const SEMAPHORES_MAX: usize = 100_000;
/// Most grants of one semaphore at the same time.
pub const SEMAPHORE_ACTIVE_MAX: u32 = 10_000_000;
/// Most holders of one semaphore that may be asked to release at the same time: to find whom the next is asked for,
/// one goes past as many who wait.
pub const SEMAPHORE_REVOKING_MAX: u32 = 10_000;
/// Most steps a semaphore takes in one command; the next tick takes the rest.
pub const SETTLE_STEPS_MAX: usize = 20_000;
/// How many who wait one may go past at the price of a step.
pub const SETTLE_STEP_PLACES: usize = 64;
/// Most tasks that are looked at to find the one that has been ready for longest.
pub const OLDEST_LOOKED_MAX: usize = 256;
/// Largest task id: what fits beside a tube number in one SQLite key.
pub const TASK_ID_MAX: u64 = (1 << 49) - 1;
/// Most duration classes of one pool.
pub const CLASSES_MAX: usize = 8;
/// Most tasks that wait in one pool unless the operator sets another number.
pub const POOL_QUEUE_MAX: usize = 100_000;
/// How long the embedded store's write-ahead log may become, in bytes, when another program keeps it from beginning
/// anew; then writes are refused.
pub const LOG_BYTES_MAX: u64 = 1 << 30;
