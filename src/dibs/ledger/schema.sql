-- The ledger's tables, as the newest migration leaves them. A new ledger is made from this file in one go;
-- an older one is brought here by the migrations. A test compares the two ways.

CREATE TABLE sandboxes (
    id          TEXT PRIMARY KEY,
    domain      TEXT NOT NULL,
    name        TEXT NOT NULL,
    backend     TEXT NOT NULL,
    state       TEXT NOT NULL
                CHECK (state IN ('queued', 'creating', 'running', 'paused', 'stopping', 'exited', 'failed')),
    uid         INTEGER NOT NULL,
    username    TEXT NOT NULL,
    owner       TEXT NOT NULL,
    spec        TEXT NOT NULL,
    folder      TEXT NOT NULL,
    handle      TEXT,
    receipt     TEXT,
    exit        TEXT,
    reason      TEXT,
    simulated   INTEGER NOT NULL DEFAULT 0,
    created_at  REAL NOT NULL,
    started_at  REAL,
    ended_at    REAL,
    tenant      TEXT NOT NULL DEFAULT '',
    labels      TEXT NOT NULL DEFAULT '{}',
    annotations TEXT NOT NULL DEFAULT '{}',
    pending     TEXT,
    origin      TEXT NOT NULL DEFAULT '',
    expires_at  REAL,
    seq         INTEGER NOT NULL DEFAULT 0,
    step        TEXT NOT NULL DEFAULT 'booked',
    fence       INTEGER NOT NULL DEFAULT 0,
    waits_for   TEXT NOT NULL DEFAULT '',
    group_id    TEXT NOT NULL DEFAULT '',
    rank        INTEGER NOT NULL DEFAULT 0
);

-- A name is free again when its sandbox has ended. Names are those of one user: two users, or two tenants, may have the same.
CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (domain, tenant, uid, name) WHERE ended_at IS NULL;
CREATE INDEX sandboxes_by_end ON sandboxes (domain, ended_at);
-- The order of creation is `seq`: a clock may jump.
CREATE INDEX sandboxes_by_creation ON sandboxes (domain, seq);
CREATE INDEX sandboxes_by_name ON sandboxes (domain, name, seq);
-- What lives is looked through at every start, whatever has ended is not.
CREATE INDEX sandboxes_live ON sandboxes (domain, seq) WHERE ended_at IS NULL;

CREATE INDEX sandboxes_by_group ON sandboxes (group_id, rank) WHERE group_id <> '';

-- A lease is booked by this ledger, or delegated to the scheduler of its domain and later bound to a node.
CREATE TABLE leases (
    id          TEXT PRIMARY KEY,
    sandbox_id  TEXT NOT NULL REFERENCES sandboxes (id),
    domain      TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('reserved', 'attached', 'draining', 'free')),
    devices     TEXT NOT NULL,
    created_at  REAL NOT NULL,
    changed_at  REAL NOT NULL,
    allocation  TEXT NOT NULL DEFAULT 'booked',
    claim       TEXT NOT NULL DEFAULT '',
    node        TEXT NOT NULL DEFAULT ''
);

CREATE INDEX leases_by_sandbox ON leases (sandbox_id);
CREATE INDEX leases_live ON leases (domain) WHERE state <> 'free';

CREATE TABLE lease_units (
    lease_id    TEXT NOT NULL REFERENCES leases (id),
    domain      TEXT NOT NULL,
    unit_id     TEXT NOT NULL,
    live        INTEGER NOT NULL CHECK (live IN (0, 1)),
    PRIMARY KEY (lease_id, unit_id)
);

-- The proof: a unit of hardware is in at most one live lease of its domain, which is a host or a cluster.
CREATE UNIQUE INDEX lease_units_live ON lease_units (domain, unit_id) WHERE live = 1;

-- Shares of devices that several leases may have at once. Amounts are in billionths, exact.
CREATE TABLE lease_shares (
    lease_id    TEXT NOT NULL REFERENCES leases (id),
    domain      TEXT NOT NULL,
    device_id   TEXT NOT NULL,
    share_id    TEXT NOT NULL,
    capacity    TEXT NOT NULL,
    amount      TEXT NOT NULL,
    live        INTEGER NOT NULL CHECK (live IN (0, 1)),
    PRIMARY KEY (share_id, capacity)
);

CREATE INDEX lease_shares_live ON lease_shares (domain, device_id) WHERE live = 1;

-- Taints that a person has put on devices.
CREATE TABLE taints (
    domain      TEXT NOT NULL,
    device_id   TEXT NOT NULL,
    key         TEXT NOT NULL,
    value       TEXT NOT NULL,
    effect      TEXT NOT NULL CHECK (effect IN ('None', 'NoSchedule', 'NoExecute')),
    username    TEXT NOT NULL,
    created_at  REAL NOT NULL,
    PRIMARY KEY (domain, device_id, key, effect)
);

-- The queue, in the order of `seq`. `deadline` and `called_at` are seconds of CLOCK_BOOTTIME in the boot `boot`; `wake` is
-- the FIFO on which the waiting process listens, and which has no reader once that process is gone. `kept`: seconds that the
-- place is kept from then on.
CREATE TABLE tickets (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    domain      TEXT NOT NULL,
    uid         INTEGER NOT NULL,
    username    TEXT NOT NULL,
    owner       TEXT NOT NULL,
    request     TEXT NOT NULL,
    created_at  REAL NOT NULL,
    sandbox_id  TEXT,
    tenant      TEXT NOT NULL DEFAULT '',
    boot        TEXT NOT NULL DEFAULT '',
    deadline    REAL,
    wake        TEXT NOT NULL DEFAULT '',
    called_at   REAL,
    kept        REAL NOT NULL DEFAULT 0
);

CREATE INDEX tickets_by_sandbox ON tickets (sandbox_id);

CREATE TABLE events (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    at          REAL NOT NULL,
    kind        TEXT NOT NULL,
    sandbox_id  TEXT,
    lease_id    TEXT,
    detail      TEXT NOT NULL DEFAULT '',
    tenant      TEXT
);

CREATE INDEX events_by_sandbox ON events (sandbox_id);

-- Who may call a gateway. Of the secret only its hash is kept.
CREATE TABLE tokens (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    hash         TEXT NOT NULL UNIQUE,
    scopes       TEXT NOT NULL,
    tenant       TEXT NOT NULL,
    created_at   REAL NOT NULL,
    expires_at   REAL,
    revoked_at   REAL,
    last_used_at REAL
);

CREATE UNIQUE INDEX tokens_live_name ON tokens (name) WHERE revoked_at IS NULL;

-- What a client asked for under a key of its own, so that the same question twice makes one sandbox.
CREATE TABLE idempotency (
    tenant      TEXT NOT NULL,
    key         TEXT NOT NULL,
    body_hash   TEXT NOT NULL,
    sandbox_id  TEXT NOT NULL,
    created_at  REAL NOT NULL,
    PRIMARY KEY (tenant, key)
);

CREATE INDEX idempotency_by_sandbox ON idempotency (sandbox_id);
CREATE INDEX idempotency_by_age ON idempotency (created_at);

-- Commands that run in the background of a sandbox. The paths are those inside of it.
CREATE TABLE commands (
    id          TEXT PRIMARY KEY,
    sandbox_id  TEXT NOT NULL REFERENCES sandboxes (id),
    command     TEXT NOT NULL,
    pid_path    TEXT NOT NULL,
    log_path    TEXT NOT NULL,
    detail      TEXT NOT NULL DEFAULT '{}',
    started_at  REAL NOT NULL,
    finished_at REAL,
    exit_code   INTEGER,
    error       TEXT
);

CREATE INDEX commands_by_sandbox ON commands (sandbox_id, started_at);

-- Images made of sandboxes. They outlive them.
CREATE TABLE snapshots (
    id          TEXT PRIMARY KEY,
    host        TEXT NOT NULL,
    sandbox_id  TEXT NOT NULL,
    tenant      TEXT NOT NULL,
    name        TEXT NOT NULL,
    backend     TEXT NOT NULL,
    image       TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('creating', 'ready', 'failed')),
    reason      TEXT NOT NULL,
    created_at  REAL NOT NULL,
    owner       TEXT NOT NULL DEFAULT 'null'
);

CREATE INDEX snapshots_by_tenant ON snapshots (tenant, created_at);

-- Values that belong to the ledger as a whole.
CREATE TABLE settings (
    key         TEXT PRIMARY KEY,
    value       TEXT NOT NULL
);

-- The kernels that the rows of a host come from: the one that runs now, and the boots before it.
CREATE TABLE kernels (
    host        TEXT NOT NULL,
    boot        TEXT NOT NULL,
    hostname    TEXT NOT NULL,
    addresses   TEXT NOT NULL,
    home        TEXT NOT NULL,
    filesystem  TEXT NOT NULL,
    since       REAL NOT NULL,
    ended_at    REAL,
    PRIMARY KEY (host, boot)
);

CREATE UNIQUE INDEX kernels_current ON kernels (host) WHERE ended_at IS NULL;

-- Signs of life of the processes that deliver, for those on other hosts. Only that `beat` changes means something.
CREATE TABLE heartbeats (
    owner       TEXT PRIMARY KEY,
    beat        INTEGER NOT NULL,
    at          REAL NOT NULL
);

-- Training jobs. `spec` holds the objects that were submitted, with their values; `status` how far the job has come. `wanted` is
-- what its user wants of it, `state` what is. Its ranks are sandboxes of the group that `status` names. `version` grows with
-- every change of any job.
CREATE TABLE jobs (
    id          TEXT PRIMARY KEY,
    domain      TEXT NOT NULL,
    name        TEXT NOT NULL,
    backend     TEXT NOT NULL,
    state       TEXT NOT NULL CHECK
                (state IN ('queued', 'creating', 'running', 'stopping', 'suspended', 'complete', 'failed')),
    wanted      TEXT NOT NULL CHECK (wanted IN ('run', 'suspend', 'remove')),
    uid         INTEGER NOT NULL,
    username    TEXT NOT NULL,
    tenant      TEXT NOT NULL,
    owner       TEXT NOT NULL,
    fence       INTEGER NOT NULL,
    attended    INTEGER NOT NULL CHECK (attended IN (0, 1)),
    spec        TEXT NOT NULL,
    status      TEXT NOT NULL,
    version     INTEGER NOT NULL,
    created_at  REAL NOT NULL,
    ended_at    REAL
);

CREATE UNIQUE INDEX jobs_live_name ON jobs (domain, tenant, uid, name) WHERE ended_at IS NULL;
CREATE INDEX jobs_live ON jobs (domain, version) WHERE ended_at IS NULL;
CREATE INDEX jobs_by_name ON jobs (domain, tenant, name, created_at);
