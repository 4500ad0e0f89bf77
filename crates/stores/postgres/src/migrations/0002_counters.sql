-- What was done to each tube since a server last found no other: servers count in memory and add what they
-- counted about once a second, so that no put waits for another one's count.
CREATE TABLE taskyard.counter (
    tube            integer PRIMARY KEY,
    ack             bigint NOT NULL,
    bury            bigint NOT NULL,
    delete          bigint NOT NULL,
    kick            bigint NOT NULL,
    put             bigint NOT NULL,
    release         bigint NOT NULL,
    take            bigint NOT NULL,
    touch           bigint NOT NULL,
    ttl             bigint NOT NULL,
    ttr             bigint NOT NULL,
    delay           bigint NOT NULL,
    done            bigint NOT NULL
) WITH (fillfactor = 50);
