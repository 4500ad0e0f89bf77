-- Replaces the triggers of pg_task by those that notify the scheduler and check cron.
DO $taskyard$
DECLARE
    s CONSTANT text := {schema_text};
    t CONSTANT text := {table_text};
    rel CONSTANT regclass := format('%I.%I', s, t)::regclass;
    zone text;
    c record;
BEGIN
    IF to_regprocedure(format('%I.taskyard_wake()', s)) IS NULL THEN
        EXECUTE format($f$CREATE FUNCTION %I.taskyard_wake() RETURNS trigger LANGUAGE plpgsql
            SET search_path = pg_catalog, pg_temp
            AS 'BEGIN PERFORM pg_notify(''taskyard_sql'', TG_RELID::text); RETURN NULL; END'$f$, s);
    END IF;
    -- The triggers of pg_task let only its own role insert.
    FOR c IN SELECT g.tgname FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
        WHERE g.tgrelid = rel AND NOT g.tgisinternal AND g.tgname IN ('wake_up', 'task_wake_up', t || '_wake_up')
            AND p.proname ~ 'wake_up' LOOP
        EXECUTE format('DROP TRIGGER %I ON %I.%I', c.tgname, s, t);
    END LOOP;
    -- Functions of earlier versions left out times of a repeated hour.
    IF NOT EXISTS (SELECT FROM pg_proc p
            WHERE p.oid = to_regprocedure(format('%I.taskyard_cron_next(text, text, timestamptz)', s))
            AND (strpos(p.prosrc, 'moment + interval') > 0 OR NOT pg_has_role(p.proowner, 'USAGE'))) THEN
        EXECUTE replace($cron${cron}$cron$, '"schema"', quote_ident(s));
    END IF;
    -- The time zone in which the scheduler reads cron where a row has none; the inserting session may have another.
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
        -- Changes of the scheduler itself need not notify it.
        EXECUTE format($f$CREATE TRIGGER taskyard_wake
            AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF plan, state, max, "group", remote ON %I.%I
            FOR EACH STATEMENT WHEN (current_setting('taskyard.quiet', true) IS DISTINCT FROM 'on')
            EXECUTE PROCEDURE %I.taskyard_wake()$f$, s, t, s);
    END IF;
END
$taskyard$;
