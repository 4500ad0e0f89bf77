again AS (
    INSERT INTO {table} (plan, parent, state{names})
    SELECT m.next, t.id, 'PLAN'{values} FROM mine m JOIN {table} t ON t.id = m.id
    WHERE m.next IS NOT NULL AND NOT m.stopped),
