-- Makes the table of tasks, or brings one that is there to the form that this version needs. What is there stays:
-- columns of the user, partitions, and indexes but one. Where nothing is missing nothing is changed, and no right is needed.
DO $taskyard$
DECLARE
    s CONSTANT text := {schema_text};
    t CONSTANT text := {table_text};
    labels CONSTANT text[] := {labels};
    short CONSTANT text := CASE WHEN octet_length(t) > 40
        THEN left(t, 20) || '_' || left(md5(t), 8) ELSE t END;
    key CONSTANT text := $key${key}$key$;
    rel regclass;
    zone text;
    label text;
    columns text[] := '{}';
    comments text[] := '{}';
    c record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('taskyard.sql'), hashtext(s || '.' || t));
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = s) THEN
        EXECUTE format('CREATE SCHEMA %I', s);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_type WHERE typname = 'state' AND typnamespace = quote_ident(s)::regnamespace) THEN
        EXECUTE format('CREATE TYPE %I.state AS ENUM (%s)', s,
            (SELECT string_agg(quote_literal(l), ', ' ORDER BY n) FROM unnest(labels) WITH ORDINALITY AS u(l, n)));
    END IF;
    FOREACH label IN ARRAY labels LOOP
        IF NOT EXISTS (SELECT FROM pg_enum WHERE enumlabel = label
                AND enumtypid = format('%I.state', s)::regtype) THEN
            EXECUTE format('ALTER TYPE %I.state ADD VALUE %L', s, label);
        END IF;
    END LOOP;
    rel := to_regclass(format('%I.%I', s, t));

    FOR c IN SELECT * FROM (VALUES
        ('id', 'bigint', NULL, NULL, true, 'key, and order among equals'),
        ('parent', 'bigint', 'id', NULL, false, 'the task that made this one'),
        ('plan', 'timestamptz', NULL, 'statement_timestamp()', true, 'when to begin'),
        ('start', 'timestamptz', NULL, NULL, false, 'when it began'),
        ('stop', 'timestamptz', NULL, NULL, false, 'when it ended'),
        ('active', 'interval', 'active', '1 hour', true, 'how long after its plan it may still begin'),
        ('live', 'interval', 'live', '0 sec', true, 'how old a session may be to run one more task'),
        ('repeat', 'interval', 'repeat', '0 sec', true, 'how often it runs'),
        ('timeout', 'interval', 'timeout', '0 sec', true, 'how long it may run'),
        ('count', 'integer', 'count', '0', true, 'how many tasks a session may run'),
        ('hash', 'integer', NULL, NULL, false, 'the group as a number'),
        ('max', 'integer', 'max', '0', true,
            'how many of its group may run beside it; negative: the pause between two in milliseconds'),
        ('pid', 'integer', NULL, NULL, false, 'the process that runs it'),
        ('state', format('%I.state', s), NULL, NULL, true, 'PLAN, TAKE, WORK, DONE or STOP'),
        ('delete', 'boolean', 'delete', 'true', true, 'delete it when it has nothing to say'),
        ('drift', 'boolean', 'drift', 'false', true, 'count repeats and pauses from the end'),
        ('header', 'boolean', 'header', 'true', true, 'names above the columns of its output'),
        ('string', 'boolean', 'string', 'true', true, 'quote only strings'),
        ('delimiter', '"char"', 'delimiter', E'\t', true, 'what stands between columns'),
        ('escape', '"char"', 'escape', '', true, 'what stands before a quote inside a value'),
        ('quote', '"char"', 'quote', '', true, 'what stands around values'),
        ('data', 'text', NULL, NULL, false, 'yours'),
        ('error', 'text', NULL, NULL, false, 'what went wrong'),
        ('group', 'text', 'group', 'group', true, 'tasks of a group and a remote share max'),
        ('input', 'text', NULL, NULL, true, 'what to run: one or more statements'),
        ('null', 'text', 'null', E'\\N', true, 'what stands for NULL'),
        ('output', 'text', NULL, NULL, false, 'what it said'),
        ('remote', 'text', NULL, NULL, false, 'where to run it: a connection string'),
        ('cron', 'text', NULL, NULL, false, 'when to run it, as cron says it; instead of repeat'),
        ('zone', 'text', NULL, NULL, false, 'the time zone of cron'),
        ('attempts', 'integer', NULL, '0', true, 'how often it was tried before'),
        ('attempts_max', 'integer', 'attempts_max', '0', true, 'how often it may be tried; 0 is once'),
        ('backoff', 'interval', 'backoff', '1 sec', true, 'how long to wait before the second try, then twice'),
        ('save', 'boolean', 'save', 'false', true, 'keep the session as it is for the next task, where sessions are reused'),
        ('origin', 'timestamptz', NULL, NULL, false, 'its plan before it was tried again or run by hand'),
        ('chain', 'bigint', NULL, NULL, false, 'the first of its repetitions')
    ) AS v(name, type, setting, fallback, needed, about) LOOP
        DECLARE
            value text;
            made text;
            found pg_attribute;
            old text;
        BEGIN
            value := CASE
                WHEN c.name = 'parent' THEN $v$NULLIF(NULLIF(current_setting('pg_task.id', true), '')::bigint, 0)$v$
                WHEN c.name = 'plan' THEN c.fallback
                WHEN c.name = 'state' THEN format('%L::%s', 'PLAN', c.type)
                WHEN c.fallback IS NULL THEN NULL
                WHEN c.setting IS NULL THEN c.fallback
                ELSE format('COALESCE(NULLIF(current_setting(%L, true), %L), %L)::%s',
                    'pg_task.' || c.setting, '', c.fallback, c.type) END;
            made := CASE
                -- An identity asks no right on its sequence of a role that may INSERT.
                WHEN c.name = 'id' AND current_setting('server_version_num')::integer >= 100000
                    THEN 'id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY'
                WHEN c.name = 'id' THEN 'id bigserial PRIMARY KEY'
                WHEN c.name = 'hash' AND current_setting('server_version_num')::integer >= 120000
                    THEN $v$hash integer NOT NULL GENERATED ALWAYS AS (hashtext("group" || COALESCE(remote, ''))) STORED$v$
                ELSE format('%I %s', c.name, c.type) || COALESCE(' DEFAULT ' || value, '')
                    || CASE WHEN c.needed THEN ' NOT NULL' ELSE '' END END;
            IF rel IS NULL THEN
                columns := columns || made;
                comments := comments || format('COMMENT ON COLUMN %I.%I.%I IS %L', s, t, c.name, c.about);
                CONTINUE;
            END IF;
            SELECT * INTO found FROM pg_attribute a
                WHERE a.attrelid = rel AND a.attname = c.name AND NOT a.attisdropped;
            IF found.attname IS NULL THEN
                EXECUTE format('ALTER TABLE %I.%I ADD COLUMN ', s, t) || made;
                EXECUTE format('COMMENT ON COLUMN %I.%I.%I IS %L', s, t, c.name, c.about);
            ELSIF value IS NOT NULL THEN
                SELECT pg_get_expr(d.adbin, d.adrelid) INTO old FROM pg_attrdef d
                    WHERE d.adrelid = rel AND d.adnum = found.attnum;
                -- A default that fails where nobody defined the setting.
                IF old IS NULL OR old ~ 'current_setting\(''pg_task\.[a-z_]+''::text\)' THEN
                    EXECUTE format('ALTER TABLE %I.%I ALTER COLUMN %I SET DEFAULT %s', s, t, c.name, value);
                END IF;
            END IF;
        END;
    END LOOP;
    IF rel IS NULL THEN
        EXECUTE format('CREATE TABLE %I.%I (%s)', s, t, array_to_string(columns, ', '));
        EXECUTE array_to_string(comments, '; ');
        EXECUTE format('COMMENT ON TABLE %I.%I IS %L', s, t, 'tasks: a row is a query that is run');
        rel := format('%I.%I', s, t)::regclass;
    END IF;

    FOR c IN SELECT * FROM (VALUES ('active', '> ''0 sec'''), ('live', '>= ''0 sec'''), ('repeat', '>= ''0 sec'''),
        ('timeout', '>= ''0 sec'''), ('count', '>= 0'), ('attempts_max', '>= 0'), ('backoff', '>= ''0 sec''')
    ) AS v(name, rule) LOOP
        IF NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = rel
                AND conname IN (short || '_' || c.name || '_check', 'task_' || c.name || '_check')) THEN
            EXECUTE format('ALTER TABLE %I.%I ADD CONSTRAINT %I CHECK (%I %s)', s, t,
                short || '_' || c.name || '_check', c.name, c.rule);
        END IF;
    END LOOP;

    FOR c IN SELECT * FROM (VALUES
        ('_claim', format('((%s), greatest(max, 0) DESC, id, plan) WHERE state = ''PLAN''', key)),
        ('_plan', '(plan) WHERE state = ''PLAN'''),
        ('_busy', '(id) WHERE state IN (''TAKE'', ''WORK'')'),
        ('_stop', '(stop) WHERE stop IS NOT NULL'),
        ('_pause', '(stop) WHERE max < 0 AND stop IS NOT NULL'),
        ('_parent', '(parent) WHERE parent IS NOT NULL'),
        ('_chain', '(chain) WHERE chain IS NOT NULL')
    ) AS v(name, rest) LOOP
        IF NOT EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
                WHERE i.indrelid = rel AND x.relname IN (short || c.name, short || c.name || '_' || rel::oid)) THEN
            -- A table that was called so before may have kept the name of its index.
            EXECUTE format('CREATE INDEX %I ON %I.%I ', short || c.name || CASE
                WHEN to_regclass(format('%I.%I', s, short || c.name)) IS NULL THEN '' ELSE '_' || rel::oid END, s, t) || c.rest;
        END IF;
    END LOOP;

    -- The one of pg_task on input, which lets no long input in.
    FOR c IN SELECT x.oid::regclass AS name FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        JOIN pg_am m ON m.oid = x.relam JOIN pg_attribute a ON a.attrelid = rel AND a.attnum = i.indkey[0]
        WHERE i.indrelid = rel AND m.amname = 'btree' AND i.indnatts = 1 AND a.attname = 'input' AND NOT i.indisunique
            AND x.relname ~ '_input_idx[0-9]*$' LOOP
        EXECUTE format('DROP INDEX %s', c.name);
    END LOOP;

    IF to_regprocedure(format('%I.taskyard_wake()', s)) IS NULL THEN
        EXECUTE format($f$CREATE FUNCTION %I.taskyard_wake() RETURNS trigger LANGUAGE plpgsql
            SET search_path = pg_catalog, pg_temp
            AS 'BEGIN PERFORM pg_notify(''taskyard_sql'', TG_RELID::text); RETURN NULL; END'$f$, s);
    END IF;
    -- Those of pg_task, which let only its own role insert.
    FOR c IN SELECT g.tgname FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
        WHERE g.tgrelid = rel AND NOT g.tgisinternal AND g.tgname IN ('wake_up', 'task_wake_up', t || '_wake_up')
            AND p.proname ~ 'wake_up' LOOP
        EXECUTE format('DROP TRIGGER %I ON %I.%I', c.tgname, s, t);
    END LOOP;
    IF to_regprocedure(format('%I.taskyard_cron()', s)) IS NULL THEN
        EXECUTE replace($cron${cron}$cron$, '"schema"', quote_ident(s));
    END IF;
    -- The zone by which the scheduler reads cron where a row has none; that of the inserting session may be another.
    zone := format('SELECT %L::text', current_setting('TimeZone'));
    IF NOT EXISTS (SELECT FROM pg_proc p WHERE p.oid = to_regprocedure(format('%I.taskyard_zone()', s))
            AND (p.prosrc = zone OR NOT pg_has_role(p.proowner, 'USAGE'))) THEN
        EXECUTE format('CREATE OR REPLACE FUNCTION %I.taskyard_zone() RETURNS text LANGUAGE sql STABLE
            SET search_path = pg_catalog, pg_temp AS %L', s, zone);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = rel AND tgname = 'taskyard_cron')
            AND (current_setting('server_version_num')::integer >= 130000
                OR (SELECT relkind FROM pg_class WHERE oid = rel) <> 'p') THEN
        EXECUTE format($f$CREATE TRIGGER taskyard_cron BEFORE INSERT OR UPDATE OF cron, zone ON %I.%I FOR EACH ROW
            WHEN ((NEW.cron IS NOT NULL OR NEW.zone IS NOT NULL) AND current_setting('taskyard.quiet', true) IS DISTINCT FROM 'on')
            EXECUTE PROCEDURE %I.taskyard_cron()$f$, s, t, s);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = rel AND tgname = 'taskyard_wake') THEN
        -- What the scheduler itself writes need not wake it.
        EXECUTE format($f$CREATE TRIGGER taskyard_wake
            AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF plan, state, max, "group", remote ON %I.%I
            FOR EACH STATEMENT WHEN (current_setting('taskyard.quiet', true) IS DISTINCT FROM 'on')
            EXECUTE PROCEDURE %I.taskyard_wake()$f$, s, t, s);
    END IF;
END
$taskyard$
