BEGIN TRANSACTION;
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO "about" VALUES('run_id','run-1');
INSERT INTO "about" VALUES('schema_version','proofbox.ledger/1');
CREATE TABLE attempt (
    number    INTEGER PRIMARY KEY,
    id        TEXT NOT NULL UNIQUE,
    mission   TEXT NOT NULL,
    replicate INTEGER NOT NULL,
    parent    TEXT REFERENCES attempt (id),
    state     TEXT NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'claimed', 'ended')),
    not_before REAL NOT NULL DEFAULT 0,
    lane      TEXT NOT NULL DEFAULT '',
    epoch     INTEGER NOT NULL DEFAULT 0,
    worker    TEXT,
    lease_until REAL,
    phase     TEXT NOT NULL DEFAULT 'planned',
    interrupt INTEGER NOT NULL DEFAULT 0,
    planned_at REAL NOT NULL,
    claimed_at REAL,
    ended_at  REAL,
    result    TEXT
) STRICT;
INSERT INTO "attempt" VALUES(1,'answer.1','answer',1,NULL,'planned',0.0,'',0,NULL,NULL,'planned',0,1767225600.0,NULL,NULL,NULL);
CREATE INDEX attempt_state ON attempt (state, not_before, number);
CREATE INDEX attempt_parent ON attempt (parent) WHERE parent IS NOT NULL;
CREATE INDEX attempt_interrupt ON attempt (state) WHERE interrupt = 1;
CREATE INDEX attempt_again ON attempt (number) WHERE json_extract(result, '$.retry_after') IS NOT NULL;
COMMIT;
