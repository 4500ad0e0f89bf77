-- The examples of docs/sql.md.

-- docs: begin first
INSERT INTO task (input) VALUES ('SELECT now()');
-- docs: end

-- docs: begin plan
INSERT INTO task (plan, input) VALUES (now() + interval '5 min', 'SELECT now()');
INSERT INTO task (plan, input) VALUES ('2029-07-01 12:51:00', 'SELECT now()');
INSERT INTO task (repeat, input) VALUES ('5 min', 'SELECT now()');
INSERT INTO task (cron, zone, input) VALUES ('30 9 * * mon-fri', 'Europe/Berlin', 'SELECT now()');
-- docs: end

-- docs: begin groups
-- two at a time
INSERT INTO task (max, input) SELECT 1, 'SELECT pg_sleep(0.1)' FROM generate_series(1, 10);
-- in parallel with those two, because of its higher max
INSERT INTO task (max, input) VALUES (2, 'SELECT now()');
-- in another group: group is a reserved word and needs quotes
INSERT INTO task ("group", max, input) SELECT 'reports', 1, 'SELECT pg_sleep(0.1)' FROM generate_series(1, 10);
-- in sequence, with pauses of 50 milliseconds
INSERT INTO task ("group", max, input) SELECT 'slow', -50, 'SELECT pg_sleep(0.1)' FROM generate_series(1, 3);
-- a thousand tasks in at most four sessions, instead of one session for each
INSERT INTO task ("group", max, count, input) SELECT 'many', 3, 1000, 'SELECT 1' FROM generate_series(1, 1000);
-- docs: end

-- docs: begin ends
-- cancelled after five seconds in total
INSERT INTO task (timeout, input) VALUES ('5 sec', 'SELECT pg_sleep(1)');
-- tried up to four times, after 1, 2 and 4 seconds
INSERT INTO task (attempts_max, backoff, input) VALUES (4, '1 sec', 'SELECT count(*) FROM pg_class');
-- not started any more when it is ten minutes late
INSERT INTO task (active, input) VALUES ('10 min', 'SELECT now()');
-- docs: end

-- docs: begin format
INSERT INTO task (delimiter, quote, escape, "null", input)
VALUES (',', '"', '"', '', 'SELECT relname, relpages, reloptions FROM pg_class LIMIT 3');
-- docs: end

-- docs: begin stop
UPDATE task SET state = 'STOP' WHERE id = 1 AND state IN ('PLAN', 'TAKE', 'WORK');
-- docs: end
