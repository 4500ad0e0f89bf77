//! Declares the SQL statements: one function call for each command.

use tokio_postgres::types::{ToSql, Type};

/// A statement and the types of its parameters.
#[derive(Debug)]
pub(super) struct Statement {
    pub text: &'static str,
    pub types: &'static [Type],
}

/// A value for a parameter.
pub(super) type Param = Box<dyn ToSql + Sync + Send>;

/// A statement with its values. It can be sent again when a transaction is repeated.
#[derive(Debug)]
pub(super) struct Call {
    pub statement: &'static Statement,
    pub params: Vec<Param>,
}

impl Call {
    pub fn new<const N: usize>(statement: &'static Statement, params: [Param; N]) -> Self {
        debug_assert_eq!(statement.types.len(), N, "{}", statement.text);
        Call { statement, params: params.into() }
    }
}

/// Boxes a value.
pub(super) fn param(value: impl ToSql + Sync + Send + 'static) -> Param {
    Box::new(value)
}

macro_rules! statements {
    ($($name:ident: $text:literal ($($type:ident),*);)+) => {
        $(pub(super) static $name: Statement =
            Statement { text: $text, types: &[$(Type::$type),*] };)+
    };
}

statements! {
    CREATE_TUBE: "SELECT * FROM taskyard.create_paced($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,$24)"
        (TEXT, TEXT, BOOL, INT8, INT8, INT8, INT8, INT8, INT8, BOOL, BOOL, INT8, TEXT, INT8, INT8, INT8, INT8, INT8,
            INT8, INT8, BOOL, INT8, INT8, INT8);
    NAME_TUBE: "SELECT r.status, r.other, i.* FROM taskyard.name_tube($1,$2,$3) r \
        LEFT JOIN LATERAL taskyard.show_tubes(CASE WHEN r.status = 0 THEN $2 ELSE '' END, $4) i ON true"
        (TEXT, TEXT, INT8, INT8);
    ALTER_TUBE: "SELECT * FROM taskyard.alter_paced($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,$24,$25,$26,$27)"
        (TEXT, BOOL, BOOL, INT8, BOOL, INT8, BOOL, INT8, BOOL, INT8, INT8, BOOL, INT8, BOOL, INT8, INT8, BOOL, INT8,
            INT8, INT8, INT8, BOOL, BOOL, INT8, INT8, INT8, INT8);
    DROP_TUBE: "SELECT * FROM taskyard.drop_tube($1,$2)" (TEXT, INT8);
    SHOW_TUBES: "SELECT * FROM taskyard.show_tubes($1,$2)" (TEXT, INT8);
    TRUNCATE_TUBE: "SELECT * FROM taskyard.truncate_tube($1,$2)" (TEXT, INT8);
    RESERVE_IDS: "SELECT * FROM taskyard.reserve_ids($1,$2)" (TEXT, INT8);
    PUT: "SELECT * FROM taskyard.put_tasks($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14)"
        (TEXT, INT8, INT4_ARRAY, BYTEA_ARRAY, BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY,
            INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, FLOAT8_ARRAY, INT4, INT8_ARRAY);
    PUT_KEYED: "SELECT * FROM taskyard.put_keyed($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17)"
        (TEXT, INT8, INT4_ARRAY, BYTEA_ARRAY, BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY,
            INT8_ARRAY, TEXT_ARRAY, FLOAT8_ARRAY, TEXT_ARRAY, INT8_ARRAY, BOOL_ARRAY, INT8_ARRAY, INT4_ARRAY);
    LOCK_KEYS: "SELECT taskyard.lock_keys($1,$2,$3)" (TEXT, TEXT_ARRAY, INT8);
    LOCK_TUBE: "SELECT taskyard.lock_tube($1,$2,$3)" (TEXT, TEXT_ARRAY, INT8_ARRAY);
    TAKE: "SELECT * FROM taskyard.deliver_with_rate($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)"
        (TEXT, INT8, INT8, BYTEA, INT8, INT8, INT8, INT8, BOOL, TEXT_ARRAY);
    ACK: "SELECT * FROM taskyard.ack_tasks($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)"
        (TEXT, INT8, INT8_ARRAY, INT2_ARRAY, INT8_ARRAY, BYTEA_ARRAY, BOOL, INT8, TID_ARRAY, BYTEA_ARRAY);
    FINISH: "SELECT * FROM taskyard.finish_tasks($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13)"
        (TEXT, INT8, INT8_ARRAY, INT2_ARRAY, INT8_ARRAY, BYTEA_ARRAY, INT2_ARRAY, INT8_ARRAY,
            BOOL_ARRAY, BOOL, INT8, BYTEA_ARRAY, INT8_ARRAY);
    DELETE: "SELECT * FROM taskyard.remove_tasks($1,$2,$3,$4,$5)"
        (TEXT, INT8, INT8_ARRAY, BOOL, INT8);
    KICK: "SELECT * FROM taskyard.kick_tasks($1,$2,$3)" (TEXT, INT8, INT8);
    KICK_TASKS: "SELECT * FROM taskyard.kick_these($1,$2,$3,$4)" (TEXT, INT8, INT8_ARRAY, BOOL);
    PEEK: "SELECT * FROM taskyard.show_tasks($1,$2,$3,$4)" (TEXT, INT8, INT8_ARRAY, INT8);
    PEEK_RANGE: "SELECT * FROM taskyard.show_range($1,$2,$3,$4,$5,$6)" (TEXT, INT8, INT8, INT8, BYTEA, INT8);
    SEARCH: "SELECT * FROM taskyard.search_range($1,$2,$3,$4,$5,$6,$7)" (TEXT, INT8, INT8, INT8, INT4, BYTEA, INT8);
    DELIVERIES: "SELECT p.*, NULL::float8 AS semaphore_priority, k.since, CASE WHEN k.lease = p.lease THEN k.worker END AS worker \
        FROM taskyard.show_deliveries($1,$2) p LEFT JOIN LATERAL ( \
            SELECT coalesce(k.since, k.created) AS since, k.lease, k.worker \
            FROM taskyard.tube u JOIN taskyard.task k ON k.tube = u.number \
            WHERE u.name = $1 AND k.id = p.id AND p.item > 0 OFFSET 0) k ON true" (TEXT, INT8);
    POSITIONS: "SELECT * FROM taskyard.show_positions($1,$2,$3)" (TEXT, INT8, INT8_ARRAY);
    LIST: "SELECT * FROM taskyard.list_page($1,$2,$3,$4,$5,$6,$7)" (TEXT, INT8, INT4, INT8, INT8, INT8, TEXT);
    RELEASE_ALL: "SELECT * FROM taskyard.release_all($1,$2)" (TEXT, INT8);
    JOIN_SESSION: "SELECT * FROM taskyard.join_session($1,$2,$3,$4)" (BYTEA, BOOL, BYTEA, INT8);
    LEAVE_SESSION: "SELECT * FROM taskyard.leave_session($1,$2,$3)" (BYTEA, BYTEA, INT8);
    CONFIGURE_SESSIONS: "SELECT taskyard.configure_sessions($1)" (INT8);
    TICK: "SELECT * FROM taskyard.tick_all($1,$2,$3,$4)" (INT8, INT8, INT8, INT8);
    HEARTBEAT: "SELECT * FROM taskyard.heartbeat($1,$2,$3)" (BYTEA, INT8, INT8);
    CHECK_WRITE: "UPDATE taskyard.server SET heartbeat = heartbeat WHERE id = (SELECT v.id FROM taskyard.server v \
            WHERE v.id = $1 FOR UPDATE SKIP LOCKED)" (BYTEA);
    ADD_COUNTERS: "SELECT taskyard.add_counters($1,$2,$3)" (INT4_ARRAY, INT8_ARRAY, INT4_ARRAY);
    BUCKETS: "SELECT b.tube, b.level, b.at FROM taskyard.bucket b WHERE b.at <> 0" ();
    ALL_COUNTERS: "SELECT * FROM taskyard.counter" ();
    COUNTERS: "SELECT c.* FROM taskyard.tube t JOIN taskyard.counter c ON c.tube = t.number \
        WHERE t.name = ANY ($1)" (TEXT_ARRAY);
    RESYNC_SERVER: "SELECT * FROM taskyard.resync_server($1,$2,$3,$4,$5,$6)"
        (BYTEA, BYTEA_ARRAY, INT8_ARRAY, BYTEA_ARRAY, INT8, INT8);
    BEGIN_SERVER: "SELECT taskyard.begin_server($1,$2)" (BYTEA, INT8);
    END_SERVER: "SELECT taskyard.end_server($1,$2,$3)" (BYTEA, INT8, INT8);
    SEMAPHORE_LOCK: "SELECT taskyard.semaphore_lock_all($1,$2,$3)"
        (TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY);
    MOVED: "SELECT * FROM taskyard.moved()" ();
    SEMAPHORE_SHOW: "SELECT * FROM taskyard.semaphore_show($1)" (TEXT);
    SEMAPHORE_CONFIGURE: "SELECT * FROM taskyard.semaphore_configure($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19)"
        (TEXT, BOOL, INT8, INT4, INT4, INT4, FLOAT8, INT8, INT8, BOOL, INT4, INT8, BOOL, BOOL, INT8,
            BOOL, INT8, BOOL, BOOL);
    SEMAPHORE_ENQUEUE: "SELECT * FROM taskyard.semaphore_enqueue($1,$2,$3,$4)"
        (TEXT, INT8, INT8_ARRAY, FLOAT8_ARRAY);
    SEMAPHORE_ENQUEUE_ALL: "SELECT * FROM taskyard.semaphore_enqueue_all($1,$2,$3,$4,$5)"
        (TEXT_ARRAY, INT8, INT4_ARRAY, INT8_ARRAY, FLOAT8_ARRAY);
    SEMAPHORE_RELEASE_ALL: "SELECT * FROM taskyard.semaphore_release_all($1,$2,$3,$4,$5)"
        (TEXT_ARRAY, INT8, INT4_ARRAY, INT8_ARRAY, INT8_ARRAY);
    SEMAPHORE_LOOK: "SELECT * FROM taskyard.semaphore_look($1,$2)" (TEXT, INT8_ARRAY);
    SEMAPHORE_MEMBERS: "SELECT * FROM taskyard.semaphore_members($1,$2,$3,$4,$5)"
        (TEXT, BOOL, FLOAT8, INT8, INT8);
    SEMAPHORE_DROP: "SELECT * FROM taskyard.semaphore_drop($1,$2)" (TEXT, BOOL);
    SEMAPHORE_FINISH: "SELECT * FROM taskyard.semaphore_finish($1,$2,$3,$4,$5,$6)"
        (TEXT, INT8, INT8_ARRAY, INT8_ARRAY, INT2_ARRAY, INT8_ARRAY);
    SEMAPHORE_FETCH: "SELECT * FROM taskyard.semaphore_fetch($1,$2,$3)" (TEXT, INT8, INT8);
    SEMAPHORE_ACKNOWLEDGE: "SELECT * FROM taskyard.semaphore_acknowledge($1)" (INT8_ARRAY);
    NEXT_IDS: "SELECT t.number, taskyard.next_id(t.ids) FROM taskyard.tube t" ();
    NEXT_LEASE: "SELECT taskyard.next_id('taskyard.lease')" ();
    EXPORT_TASKS: "SELECT k.id, k.state, k.pri, k.created, k.expires, k.ttr, k.timer, k.attempts, k.previous_start, \
            k.start, k.subqueue, k.semaphore_priority, k.meta, k.payload, u.attempts_max, k.since, k.failures, \
            k.finished, k.key, k.unique_for, k.attempts_max \
        FROM (SELECT t.*, sum(octet_length(t.payload)) OVER (ORDER BY t.id) - octet_length(t.payload) AS before \
            FROM ((SELECT i.tube, i.id, i.state, i.pri, i.created, i.expires, i.ttr, i.timer, i.attempts, \
                    i.previous_start, i.start, i.subqueue::text, i.semaphore_priority, i.meta, i.payload, i.since, \
                    i.failures, NULL::bytea AS finished, i.key::text, i.unique_for, i.attempts_max \
                FROM taskyard.task i WHERE i.tube = $1 AND i.id >= $2 ORDER BY i.id LIMIT $3) \
                UNION ALL (SELECT d.tube, d.id, 7::smallint, d.pri, d.created, d.expires, d.ttr, NULL, d.attempts, \
                    d.previous_start, NULL, d.subqueue::text, NULL, d.meta, d.payload, NULL, d.failures, d.finished, \
                    d.key::text, d.unique_for, d.attempts_max \
                FROM taskyard.done d WHERE d.tube = $1 AND d.id >= $2 ORDER BY d.id LIMIT $3) \
                ORDER BY 2 LIMIT $3) t) k \
        JOIN taskyard.tube u ON u.number = k.tube WHERE k.before = 0 OR k.before < $4 ORDER BY k.id"
        (INT4, INT8, INT8, INT8);
    EXPORT_ENDED_KEYS: "SELECT k.id, k.key, k.until FROM taskyard.key k \
        WHERE k.tube = $1 AND k.until > -9223372036854775808 AND k.id >= $2 ORDER BY k.id LIMIT $3" (INT4, INT8, INT8);
    SET_SCHEDULE: "SELECT * FROM taskyard.set_schedule($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,$24)"
        (TEXT, TEXT, TEXT, INT2, INT2, INT8, BOOL, INT8, BYTEA, BYTEA, INT8, INT8, INT8, INT8, INT8, TEXT, FLOAT8, INT8,
            TEXT, INT8, BOOL, BOOL, BOOL, INT8);
    GET_SCHEDULE: "SELECT s.* FROM taskyard.schedule s WHERE s.name = $1" (TEXT);
    LIST_SCHEDULES: "SELECT s.* FROM taskyard.schedule s WHERE s.name > $1 ORDER BY s.name LIMIT $2" (TEXT, INT8);
    DUE_SCHEDULES: "SELECT s.*, c.now, l.next FROM (SELECT coalesce($1, taskyard.clock()) AS now) c \
        LEFT JOIN LATERAL (SELECT n.next FROM taskyard.schedule n WHERE NOT n.paused AND n.next > c.now \
            ORDER BY n.next, n.name LIMIT 1) l ON true \
        LEFT JOIN LATERAL (SELECT d.* FROM taskyard.schedule d WHERE NOT d.paused AND d.next <= c.now \
            ORDER BY d.next, d.name LIMIT $2 OFFSET $3) s ON true ORDER BY s.next, s.name" (INT8, INT8, INT8);
    REMOVE_SCHEDULE: "DELETE FROM taskyard.schedule s WHERE s.name = $1 RETURNING s.name" (TEXT);
    PAUSE_SCHEDULE: "UPDATE taskyard.schedule s SET paused = $2 WHERE s.name = $1 RETURNING s.*" (TEXT, BOOL);
    FIRE_SCHEDULE: "SELECT f.*, taskyard.first_schedule() \
        FROM taskyard.fire_schedule($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20) f"
        (TEXT, INT8, INT8, INT8, INT8, BOOL, BYTEA_ARRAY, BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY,
            INT8_ARRAY, TEXT_ARRAY, FLOAT8_ARRAY, TEXT_ARRAY, INT8_ARRAY, BOOL_ARRAY, INT8_ARRAY, INT4_ARRAY);
    EXPORT_SCHEDULES: "SELECT s.* FROM taskyard.schedule s ORDER BY s.name" ();
    IMPORT_SCHEDULE: "SELECT taskyard.end_import_schedule($1,s.status,$25,$26,$27) \
        FROM taskyard.set_schedule($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,$24) s"
        (TEXT, TEXT, TEXT, INT2, INT2, INT8, BOOL, INT8, BYTEA, BYTEA, INT8, INT8, INT8, INT8, INT8, TEXT, FLOAT8, INT8,
            TEXT, INT8, BOOL, BOOL, BOOL, INT8, INT8, INT8, INT8);
    EXPORT_SEMAPHORES: "SELECT i.*, s.id, t.grant_seq, r.at FROM taskyard.semaphore_show(NULL) i \
        JOIN taskyard.semaphore s ON s.key = i.key JOIN taskyard.semaphore_state t ON t.semaphore_id = s.id \
        LEFT JOIN taskyard.semaphore_recheck r ON r.semaphore_id = s.id ORDER BY s.id" ();
    EXPORT_PLACES: "SELECT p.semaphore_id, taskyard.gated_tube(p.task_id), \
            CASE WHEN p.task_id < 0 THEN taskyard.gated_id(p.task_id) ELSE p.task_id END, p.priority, p.seq, \
            p.status::text, p.enqueued, p.grant_no, p.granted, p.lease_until, p.ack_by, p.moment, p.pinned \
        FROM taskyard.semaphore_task p ORDER BY p.seq" ();
    EXPORT_EVENTS: "SELECT e.semaphore_id, taskyard.gated_tube(e.task_id), \
            CASE WHEN e.task_id < 0 THEN taskyard.gated_id(e.task_id) ELSE e.task_id END, e.id, e.grant_no, e.kind, \
            e.attempts, e.next_at FROM taskyard.semaphore_event e ORDER BY e.id" ();
    IMPORT_TASKS: "SELECT taskyard.import_tasks($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19)"
        (TEXT, INT8_ARRAY, INT2_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY,
            INT8_ARRAY, TEXT_ARRAY, FLOAT8_ARRAY, BYTEA_ARRAY, BYTEA_ARRAY, BYTEA_ARRAY, BYTEA_ARRAY, TEXT_ARRAY,
            INT8_ARRAY, INT8_ARRAY);
    IMPORT_ENDED_KEYS: "SELECT taskyard.import_ended_keys($1,$2,$3,$4)" (TEXT, INT8_ARRAY, TEXT_ARRAY, INT8_ARRAY);
    IMPORT_SEMAPHORE: "SELECT taskyard.import_semaphore($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15)"
        (TEXT, INT4, INT4, FLOAT8, INT8, INT8, INT4, INT8, BOOL, INT8, INT8, BOOL, BOOL, INT8, INT8);
    END_IMPORT_TUBE: "SELECT taskyard.end_import_tube($1,$2,$3,$4,$5,$6,$7,$8,$9)"
        (TEXT, TEXT, BOOL, INT8, BOOL, TEXT, INT8, INT8, INT8_ARRAY);
    END_IMPORT_PACE: "SELECT taskyard.end_import_pace($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11)"
        (TEXT, INT8, INT8, INT8, INT8, BOOL, INT8, INT8, INT8, INT8, INT8);
    IMPORT_PLACES: "SELECT taskyard.import_places($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)"
        (TEXT_ARRAY, TEXT_ARRAY, INT8_ARRAY, FLOAT8_ARRAY, TEXT_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8_ARRAY,
            INT8_ARRAY, INT8_ARRAY, INT8_ARRAY, BOOL_ARRAY);
    IMPORT_EVENTS: "SELECT taskyard.import_events($1,$2,$3,$4,$5,$6,$7,$8)"
        (TEXT_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT8_ARRAY, INT8_ARRAY, TEXT_ARRAY, INT4_ARRAY, INT8_ARRAY);
    END_IMPORT: "SELECT taskyard.end_import($1,$2,$3)" (TEXT_ARRAY, INT8, INT8);
    NOTIFY: "SELECT pg_notify('taskyard', t) FROM unnest($1) t" (TEXT_ARRAY);
}
