#!/bin/sh
# Makes the folders of a version: sh make.sh PROGRAM OUTPUT, with the program of that version. See README.txt.
set -eu
program=$(realpath "$1")
output=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

taskyard() { "$program" "$@"; }

serve() {
    rm -f screen
    "$program" serve --data "$1" --http 127.0.0.1:0 --iproto off > screen 2> log &
    server=$!
    until TASKYARD_URL=$(grep -os 'http://[0-9.:]*' screen | head -n 1) && [ -n "$TASKYARD_URL" ]; do sleep 0.05; done
    export TASKYARD_URL
    until taskyard stats > log 2>&1; do sleep 0.05; done
}

stop() {
    kill -s "$1" "$server"
    wait "$server" || true
}

# Adds a request to those that are sent together.
request() { printf "%s\n" "$1 $2" >> requests; }

send() {
    set --
    while read -r path body; do
        set -- "$@" --next --silent --fail --output answer --header 'content-type: application/json' --data "$body" "$TASKYARD_URL/v1/tubes/$path"
    done < requests
    shift
    curl "$@"
}

# Writes what the program shows of a copy of a folder.
show() {
    rm -rf copy
    cp -r "$1" copy
    serve copy
    for command in 'stats --internal' 'peek mail 0 1 2 3 4 5 6 7 8 9' 'peek orders 0 1 2 3 4 5' 'peek plain 0 1 2 3 4 5' 'peek lim 0 1 2' \
        'peek sub 0 1 2' 'peek cache 0 1 2 3' 'peek checks 0 1 2' 'semaphore show yang' 'semaphore holders yang' 'semaphore waiting yang'; do
        printf '$ %s\n' "$command"
        # Of unknown tasks it complains.
        taskyard $command --json 2> log || true
    done > "$2"
    stop INT
}

# Every field and state of tasks, every kind and option of tubes, and semaphores.
serve data
exec > commands
taskyard put mail '{"to": "ann"}' '{"to": "bob"}'
taskyard put mail urgent --pri 1 --ttr 2h --meta '{"trace": 7}'
taskyard put mail '{"to": "cy"}' --at 2120-01-01T00:00:00Z --pri 4294967295
taskyard put mail later --delay 10000d
taskyard put mail brief --ttl 10000d
seq 1 700 | tr '\n' ' ' > large
taskyard put mail @large
taskyard take mail --count 2 --lease 10000d
taskyard ack mail 0
taskyard bury mail 5
taskyard tube create orders --kind utubettl --attempts-max 3 --ttl 9000d --ttr 5m --delay 0 --pri 7
taskyard put orders 1 2 --subqueue a
taskyard put orders 3 --subqueue b
taskyard put orders 4
taskyard take orders --lease 10000d
taskyard release orders 0
taskyard take orders --count 2 --lease 10000d
taskyard tube create plain --kind fifo
taskyard put plain 1.5 null '[1, "two", {"three": 3}]' 'text'
taskyard tube create lim --kind limfifottl --capacity 2
taskyard put lim one two
taskyard tube create sub --kind utube --paused
taskyard put sub x y --subqueue z
taskyard tube create cache --temporary
taskyard put cache 1 2 3
taskyard semaphore create yang --active 2 --try-release 1 --margin 0.5 --lease 10000d
taskyard semaphore enqueue yang 17 --priority 2.5
taskyard semaphore enqueue yang 18 19 --priority -1
taskyard semaphore events --ack
taskyard tube create checks --semaphore yang
taskyard put checks '{"page": 17}' --semaphore-priority 9
taskyard put checks '{"page": 18}' --semaphore-priority -3
stop INT
tar -cf - data | gzip -9n > "$output/stopped.tar.gz"
show data "$output/stopped.txt"

# The same folder goes on. These requests take less time than the program waits before it writes its journal into the database.
serve data
taskyard take plain --lease 10000d
request mail/put '{"data": "after the stop", "pri": 2}'
request mail/put '{"data": "soon", "delay": 691200000, "ttr": 30}'
request mail/put '{"data": {"to": "eve"}, "ttl": 691200000, "meta": {"trace": 8}}'
request mail/take '{"lease": 864000000}'
request mail/kick '{}'
request mail/bury '{"tasks": [{"id": 3}]}'
request mail/delete '{"ids": [6]}'
request orders/put '{"data": 5, "subqueue": "c", "pri": 0}'
request orders/take '{"count": 3, "lease": 864000000}'
request orders/release '{"tasks": [{"id": 4}], "delay": 604800000}'
request orders/ack '{"tasks": [{"id": 2}]}'
request plain/put '{"data": false}'
send
stop KILL
tar -cf - data | gzip -9n > "$output/killed.tar.gz"
show data "$output/killed.txt"
