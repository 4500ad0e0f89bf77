-- Adds missing checks and indexes, and drops the index of pg_task on input. Indexes of the user stay unchanged.
DO $taskyard$
DECLARE
    s CONSTANT text := {schema_text};
    t CONSTANT text := {table_text};
    rel CONSTANT regclass := format('%I.%I', s, t)::regclass;
    short CONSTANT text := CASE WHEN octet_length(t) > 40
        THEN left(t, 20) || '_' || left(md5(t), 8) ELSE t END;
    key CONSTANT text := $key${key}$key$;
    c record;
BEGIN
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
            -- A table that was renamed may have kept the name of its index.
            EXECUTE format('CREATE INDEX %I ON %I.%I ', short || c.name || CASE
                WHEN to_regclass(format('%I.%I', s, short || c.name)) IS NULL THEN '' ELSE '_' || rel::oid END, s, t) || c.rest;
        END IF;
    END LOOP;

    -- The index of pg_task on input, which refuses long inputs.
    FOR c IN SELECT x.oid::regclass AS name FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
        JOIN pg_am m ON m.oid = x.relam JOIN pg_attribute a ON a.attrelid = rel AND a.attnum = i.indkey[0]
        WHERE i.indrelid = rel AND m.amname = 'btree' AND i.indnatts = 1 AND a.attname = 'input' AND NOT i.indisunique
            AND x.relname ~ '_input_idx[0-9]*$' LOOP
        EXECUTE format('DROP INDEX %s', c.name);
    END LOOP;
END
$taskyard$;
