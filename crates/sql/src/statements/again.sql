again AS (
    INSERT INTO {table} (plan, parent, state{names})
    SELECT i.next, t.id, 'PLAN'{values} FROM mine m JOIN item i ON i.id = m.id JOIN {table} t ON t.id = m.id
    WHERE i.next IS NOT NULL AND NOT m.stopped),
