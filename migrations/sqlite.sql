CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0.1.0_2');
CREATE TABLE attempts (
	name TEXT NOT NULL,
	workflow_id TEXT NOT NULL,
	stage INTEGER NOT NULL,
	"index" INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	node TEXT NOT NULL,
	epoch BIGINT NOT NULL,
	at_ms BIGINT NOT NULL,
	started_ms BIGINT,
	ended_ms BIGINT,
	exit_code INTEGER,
	reason TEXT DEFAULT '' NOT NULL,
	message TEXT DEFAULT '' NOT NULL,
	usage TEXT DEFAULT '{}' NOT NULL,
	report TEXT DEFAULT '' NOT NULL,
	choice TEXT DEFAULT '' NOT NULL,
	pod BLOB NOT NULL,
	CONSTRAINT pk_attempts PRIMARY KEY (name)
);
CREATE TABLE bindings (
	uid TEXT NOT NULL,
	namespace TEXT DEFAULT '' NOT NULL,
	name TEXT DEFAULT '' NOT NULL,
	node TEXT DEFAULT '' NOT NULL,
	"group" TEXT DEFAULT '' NOT NULL,
	epoch BIGINT DEFAULT 0 NOT NULL,
	at_ms BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_bindings PRIMARY KEY (uid)
);
CREATE TABLE cache_keys (
	workflow_id TEXT NOT NULL,
	stage INTEGER NOT NULL,
	shard INTEGER NOT NULL,
	"key" TEXT DEFAULT '' NOT NULL,
	place TEXT DEFAULT '' NOT NULL,
	parts TEXT DEFAULT '{}' NOT NULL,
	source TEXT DEFAULT '' NOT NULL,
	why TEXT DEFAULT '' NOT NULL,
	at_ms BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_cache_keys PRIMARY KEY (workflow_id, stage, shard)
)
 WITHOUT ROWID

;
CREATE TABLE commands (
	id INTEGER NOT NULL,
	workflow_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	body TEXT DEFAULT '{}' NOT NULL,
	at_ms BIGINT NOT NULL,
	done BOOLEAN DEFAULT 0 NOT NULL,
	CONSTRAINT pk_commands PRIMARY KEY (id),
	CONSTRAINT fk_commands_workflow_id FOREIGN KEY(workflow_id) REFERENCES workflows (id) ON DELETE CASCADE
);
CREATE TABLE counters (
	name TEXT NOT NULL,
	value BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_counters PRIMARY KEY (name)
);
CREATE TABLE drains (
	node TEXT NOT NULL,
	until_ms BIGINT DEFAULT 0 NOT NULL,
	from_ms BIGINT DEFAULT 0 NOT NULL,
	at_ms BIGINT DEFAULT 0 NOT NULL,
	reason TEXT DEFAULT '' NOT NULL,
	author TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_drains PRIMARY KEY (node)
);
CREATE TABLE events (
	id INTEGER NOT NULL,
	workflow_id TEXT NOT NULL,
	at_ms BIGINT NOT NULL,
	kind TEXT NOT NULL,
	body TEXT DEFAULT '{}' NOT NULL,
	CONSTRAINT pk_events PRIMARY KEY (id)
);
CREATE TABLE expired (
	workflow_id TEXT NOT NULL,
	at_ms BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_expired PRIMARY KEY (workflow_id)
)
 WITHOUT ROWID

;
CREATE TABLE gang_orders (
	workflow_id TEXT NOT NULL,
	stage INTEGER NOT NULL,
	shard INTEGER NOT NULL,
	"key" TEXT NOT NULL,
	pod BLOB NOT NULL,
	CONSTRAINT pk_gang_orders PRIMARY KEY (workflow_id, stage, shard, "key")
)
 WITHOUT ROWID

;
CREATE TABLE idempotency (
	tenant TEXT DEFAULT '' NOT NULL,
	"key" TEXT NOT NULL,
	body_hash TEXT NOT NULL,
	workflow_id TEXT NOT NULL,
	created_ms BIGINT NOT NULL,
	CONSTRAINT pk_idempotency PRIMARY KEY (tenant, "key")
);
CREATE TABLE identity (
	name TEXT NOT NULL,
	value TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_identity PRIMARY KEY (name)
)
 WITHOUT ROWID

;
CREATE TABLE lease (
	name TEXT NOT NULL,
	epoch BIGINT DEFAULT 0 NOT NULL,
	holder TEXT DEFAULT '' NOT NULL,
	renewed_ms BIGINT DEFAULT 0 NOT NULL,
	expires_ms BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_lease PRIMARY KEY (name)
);
CREATE TABLE marks (
	writer TEXT NOT NULL,
	txn BIGINT DEFAULT 0 NOT NULL,
	at_ms BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_marks PRIMARY KEY (writer)
);
CREATE TABLE outputs (
	workflow_id TEXT NOT NULL,
	stage INTEGER NOT NULL,
	"index" INTEGER NOT NULL,
	name TEXT NOT NULL,
	uri TEXT NOT NULL,
	size_bytes BIGINT DEFAULT 0 NOT NULL,
	value TEXT,
	attempt INTEGER NOT NULL,
	CONSTRAINT pk_outputs PRIMARY KEY (workflow_id, stage, "index", name)
)
 WITHOUT ROWID

;
CREATE TABLE past_usage (
	day BIGINT NOT NULL,
	"key" TEXT NOT NULL,
	queue TEXT DEFAULT '' NOT NULL,
	owner TEXT DEFAULT '' NOT NULL,
	labels TEXT DEFAULT '{}' NOT NULL,
	workflows BIGINT DEFAULT 0 NOT NULL,
	core_ms BIGINT DEFAULT 0 NOT NULL,
	gpu_ms BIGINT DEFAULT 0 NOT NULL,
	memory_gib_ms BIGINT DEFAULT 0 NOT NULL,
	memory_saved_gib_ms BIGINT DEFAULT 0 NOT NULL,
	queued_ms BIGINT DEFAULT 0 NOT NULL,
	running_ms BIGINT DEFAULT 0 NOT NULL,
	bytes_local BIGINT DEFAULT 0 NOT NULL,
	bytes_moved BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_past_usage PRIMARY KEY (day, "key")
)
 WITHOUT ROWID

;
CREATE TABLE plans (
	id TEXT NOT NULL,
	seq BIGINT DEFAULT 0 NOT NULL,
	created_ms BIGINT DEFAULT 0 NOT NULL,
	name TEXT DEFAULT '' NOT NULL,
	run TEXT DEFAULT '' NOT NULL,
	nodes BIGINT DEFAULT 0 NOT NULL,
	body BLOB NOT NULL,
	CONSTRAINT pk_plans PRIMARY KEY (id)
);
CREATE TABLE queue_usage (
	queue TEXT NOT NULL,
	who TEXT NOT NULL,
	at_ms BIGINT DEFAULT 0 NOT NULL,
	served_ms BIGINT DEFAULT 0 NOT NULL,
	past TEXT DEFAULT '{}' NOT NULL,
	CONSTRAINT pk_queue_usage PRIMARY KEY (queue, who)
)
 WITHOUT ROWID

;
CREATE TABLE queues (
	name TEXT NOT NULL,
	parent TEXT,
	weight INTEGER DEFAULT 1 NOT NULL,
	priority INTEGER DEFAULT 0 NOT NULL,
	guarantee TEXT DEFAULT '{}' NOT NULL,
	cap TEXT DEFAULT '{}' NOT NULL,
	reclaimable BOOLEAN DEFAULT 1 NOT NULL,
	paused BOOLEAN DEFAULT 0 NOT NULL,
	"order" TEXT DEFAULT 'best-effort' NOT NULL,
	CONSTRAINT pk_queues PRIMARY KEY (name)
);
CREATE TABLE replicas (
	uri TEXT NOT NULL,
	node TEXT NOT NULL,
	size_bytes BIGINT DEFAULT 0 NOT NULL,
	CONSTRAINT pk_replicas PRIMARY KEY (uri, node)
)
 WITHOUT ROWID

;
CREATE TABLE runs (
	id TEXT NOT NULL,
	seq BIGINT NOT NULL,
	name TEXT DEFAULT '' NOT NULL,
	source TEXT DEFAULT '' NOT NULL,
	queue TEXT DEFAULT '' NOT NULL,
	labels TEXT DEFAULT '{}' NOT NULL,
	created_ms BIGINT DEFAULT 0 NOT NULL,
	state TEXT DEFAULT '' NOT NULL,
	reason TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_runs PRIMARY KEY (id),
	CONSTRAINT uq_runs_seq UNIQUE (seq)
);
CREATE TABLE stages (
	workflow_id TEXT NOT NULL,
	stage INTEGER NOT NULL,
	name TEXT DEFAULT '' NOT NULL,
	state TEXT NOT NULL,
	width INTEGER NOT NULL,
	members INTEGER NOT NULL,
	counts TEXT DEFAULT '{}' NOT NULL,
	totals TEXT DEFAULT '{}' NOT NULL,
	started_ms BIGINT,
	ended_ms BIGINT,
	reason TEXT DEFAULT '' NOT NULL,
	CONSTRAINT pk_stages PRIMARY KEY (workflow_id, stage),
	CONSTRAINT fk_stages_workflow_id FOREIGN KEY(workflow_id) REFERENCES workflows (id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE tasks (
	workflow_id TEXT NOT NULL,
	stage INTEGER NOT NULL,
	"index" INTEGER NOT NULL,
	state SMALLINT NOT NULL,
	attempt INTEGER NOT NULL,
	node TEXT,
	goal SMALLINT NOT NULL,
	version BIGINT NOT NULL,
	reason TEXT DEFAULT '' NOT NULL,
	exit_code INTEGER,
	ready_ms BIGINT,
	staging_ms BIGINT,
	staged_ms BIGINT,
	bound_ms BIGINT,
	started_ms BIGINT,
	ended_ms BIGINT,
	bytes_local BIGINT DEFAULT 0 NOT NULL,
	bytes_moved BIGINT DEFAULT 0 NOT NULL,
	charged INTEGER DEFAULT 0 NOT NULL,
	memory_steps INTEGER DEFAULT 0 NOT NULL,
	CONSTRAINT pk_tasks PRIMARY KEY (workflow_id, stage, "index")
)
 WITHOUT ROWID

;
CREATE TABLE tes_tasks (
	id TEXT NOT NULL,
	seq BIGINT DEFAULT 0 NOT NULL,
	created_ms BIGINT DEFAULT 0 NOT NULL,
	name TEXT DEFAULT '' NOT NULL,
	tags TEXT DEFAULT '{}' NOT NULL,
	state TEXT DEFAULT '' NOT NULL,
	logs TEXT DEFAULT '[]' NOT NULL,
	body BLOB NOT NULL,
	CONSTRAINT pk_tes_tasks PRIMARY KEY (id)
);
CREATE TABLE workflows (
	id TEXT NOT NULL,
	seq BIGINT NOT NULL,
	name TEXT DEFAULT '' NOT NULL,
	queue TEXT DEFAULT '' NOT NULL,
	priority INTEGER DEFAULT 0 NOT NULL,
	labels TEXT DEFAULT '{}' NOT NULL,
	state TEXT NOT NULL,
	reason TEXT DEFAULT '' NOT NULL,
	tenant TEXT DEFAULT '' NOT NULL,
	owner TEXT DEFAULT '' NOT NULL,
	created_ms BIGINT DEFAULT 0 NOT NULL,
	started_ms BIGINT,
	ended_ms BIGINT,
	cancel_requested BOOLEAN DEFAULT 0 NOT NULL,
	paused BOOLEAN DEFAULT 0 NOT NULL,
	stages INTEGER NOT NULL,
	tasks BIGINT DEFAULT 0 NOT NULL,
	spec_bytes BIGINT DEFAULT 0 NOT NULL,
	run TEXT DEFAULT '' NOT NULL,
	node TEXT DEFAULT '' NOT NULL,
	task TEXT DEFAULT '' NOT NULL,
	kind TEXT DEFAULT '' NOT NULL,
	shard BIGINT,
	call_attempt INTEGER DEFAULT 1 NOT NULL,
	"after" TEXT DEFAULT '[]' NOT NULL,
	spec BLOB NOT NULL,
	CONSTRAINT pk_workflows PRIMARY KEY (id),
	CONSTRAINT uq_workflows_seq UNIQUE (seq)
);
CREATE INDEX ix_attempts_open ON attempts (workflow_id) WHERE ended_ms IS NULL;
CREATE INDEX ix_attempts_task ON attempts (workflow_id, stage, "index");
CREATE INDEX ix_cache_keys_key ON cache_keys ("key");
CREATE INDEX ix_cache_keys_place ON cache_keys (place, at_ms);
CREATE INDEX ix_cache_keys_source ON cache_keys (source);
CREATE INDEX ix_events_workflow ON events (workflow_id, id);
CREATE INDEX ix_idempotency_workflow_id ON idempotency (workflow_id);
CREATE INDEX ix_plans_seq ON plans (seq);
CREATE INDEX ix_plans_run ON plans (run);
CREATE INDEX ix_runs_prefix ON runs (id);
CREATE INDEX ix_runs_open ON runs (seq) WHERE state = '';
CREATE INDEX ix_tes_tasks_seq ON tes_tasks (seq);
CREATE INDEX ix_workflows_ended_ms ON workflows (ended_ms);
CREATE INDEX ix_workflows_live ON workflows (seq) WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED');
CREATE INDEX ix_workflows_run ON workflows (run, seq) WHERE run <> '';
CREATE INDEX ix_workflows_live_calls ON workflows (run) WHERE run <> '' AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED');
CREATE INDEX ix_commands_open ON commands (id) WHERE NOT done;
CREATE INDEX ix_commands_workflow_id ON commands (workflow_id);
