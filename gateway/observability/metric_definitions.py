"""Defines every metric once, by subject. `Telemetry` has all of them."""

from __future__ import annotations

from gateway.observability.metrics import Counter, Gauge, Histogram

LEFT_OUT = ("learning", "vector", "pair", "lookup")  # as `gateway.cache.load_level.OptionalWork`
SPAN_OUTCOMES = ("exported", "queue-full", "failed", "refused")


class RequestMetrics:
    """Requests of clients, their answers, and the savings of hits."""

    def __init__(self) -> None:
        self.requests = Counter(
            "nearhit_requests_total", "Requests answered", ("route", "dialect", "verdict", "status")
        )
        self.request_seconds = Histogram(
            "nearhit_request_seconds", "From the arrival of a request to the end of its answer", ("route", "verdict")
        )
        self.stage_seconds = Histogram("nearhit_stage_seconds", "Time spent in a stage", ("stage",))
        self.overhead_seconds = Histogram(
            "nearhit_overhead_seconds", "Time to the first byte of an answer, less the time a backend took for it", ()
        )
        self.tokens_saved = Counter("nearhit_tokens_saved_total", "Tokens saved by hits", ("route",))
        self.cost_saved = Counter("nearhit_cost_saved_dollars_total", "Dollars saved by hits", ("route",))
        self.backend_seconds_saved = Counter(
            "nearhit_backend_seconds_saved_total", "Seconds of backend time saved by hits", ("route",)
        )
        self.feedback = Counter("nearhit_feedback_total", "Feedback of clients on answers", ("route", "verdict"))
        self.step_failures = Counter(
            "nearhit_step_failures_total", "Unexpected failures of a step; the request went on without it", ("step",)
        )


class RoutingMetrics:
    """The models that misses are sent to, and the outcome."""

    def __init__(self) -> None:
        self.routed = Counter(
            "nearhit_routed_total", "Misses by tier and by the reason for it", ("route", "tier", "reason")
        )
        self.large_share = Gauge(
            "nearhit_large_share",
            "Large model's share of the last hour's misses that could go to either model",
            ("route",),
        )
        self.escalation_threshold = Gauge(
            "nearhit_escalation_threshold", "Present complexity above which the light model is skipped", ("route",)
        )
        self.quality_kept = Gauge(
            "nearhit_quality_kept", "Expected share of the quality gap between light and large that is kept", ("route",)
        )
        self.quality_kept_low = Gauge(
            "nearhit_quality_kept_low", "Lower end of the 95 % interval of the share that is kept", ("route",)
        )
        self.quality_kept_high = Gauge(
            "nearhit_quality_kept_high", "Upper end of the 95 % interval of the share that is kept", ("route",)
        )
        self.routing_labels = Counter(
            "nearhit_routing_labels_total",
            "Requests for which the light model's answer proved worse, as good or better, by source",
            ("route", "source", "label"),
        )
        self.light_audits = Counter(
            "nearhit_light_audits_total",
            "Answers of the light model chosen for comparison with the large one's, by outcome",
            ("route", "outcome"),
        )
        self.schema_checks = Counter(
            "nearhit_schema_checks_total",
            "Answers to requests that name a JSON Schema, by whether they fit it",
            ("route", "outcome"),
        )


class PromiseMetrics:
    """Latency budgets, promised and kept."""

    def __init__(self) -> None:
        self.promises = Counter(
            "nearhit_promises_total",
            "Requests with a latency budget that the caches did not answer, by outcome",
            ("route", "outcome"),
        )
        self.required_confidence = Gauge(
            "nearhit_required_confidence",
            "Confidence that a prediction must have for its backend to be called",
            ("route",),
        )
        self.promised_confidence = Gauge(
            "nearhit_promised_confidence",
            "Share of promised latency budgets that the policy in force wants kept",
            ("route",),
        )


class CacheMetrics:
    """Stored answers, lookups, and removals."""

    def __init__(self) -> None:
        self.admissions = Counter(
            "nearhit_admissions_total", "Answers stored, or why they were not", ("route", "outcome")
        )
        self.crowds = Counter(
            "nearhit_crowds_total", "Coalescing of calls among the gateways on a store, by outcome", ("outcome",)
        )
        self.link_hits = Counter("nearhit_link_hits_total", "Semantic hits by a link, whatever their score", ("route",))
        self.refusals = Counter(
            "nearhit_refusals_total", "Neighbours whose answer was not served, by reason", ("route", "reason")
        )
        self.screen_lost_hits = Counter(
            "nearhit_screen_lost_hits_total",
            "Questions sent on before they were embedded although a stored answer would have been served",
            ("route",),
        )
        self.late_vectors = Counter(
            "nearhit_late_vectors_total",
            "Questions embedded after their answer, by whether their entry has its vector now",
            ("route", "result"),
        )
        self.cache_entries = Gauge("nearhit_cache_entries", "Entries by kind of cache", ("kind",))
        self.cache_bytes = Gauge("nearhit_cache_bytes", "Bytes by kind of cache", ("kind",))
        self.migration_entries = Gauge(
            "nearhit_migration_entries",
            "Entries with a vector of another embedding model, by state of their migration",
            ("state",),
        )
        self.evictions = Counter(
            "nearhit_evictions_total",
            "Stored answers removed for lack of room, by the bound that was reached",
            ("reason",),
        )
        self.purged = Counter("nearhit_purged_total", "Stored answers that operators removed", ("route",))
        self.bans = Gauge("nearhit_bans", "Bans in force, until no entry that they match can be left", ())


class QualityMetrics:
    """The wrong hits of the semantic cache, and their measurement."""

    def __init__(self) -> None:
        self.answer_share = Gauge(
            "nearhit_answer_share",
            "Share of the answers to questions that ask something else which are the same text",
            ("route",),
        )
        self.labels = Counter(
            "nearhit_labels_total",
            "Lookups whose neighbour turned out right or wrong, by source",
            ("route", "source", "label"),
        )
        self.comparisons_dropped = Counter(
            "nearhit_comparisons_dropped_total",
            "Misses not used for learning, by the bound on waiting comparisons that was reached",
            ("route", "reason"),
        )
        self.learning_waits = Counter(
            "nearhit_learning_waits_total", "Comparisons of answers that waited for the CPU budget of learning", ()
        )
        self.cpu_seconds = Counter(
            "nearhit_cpu_seconds_total",
            "CPU of the event loop and of the embedder's thread, for requests and for learning",
            ("purpose",),
        )
        self.audits = Counter(
            "nearhit_audits_total", "Semantic hits chosen for an audit, by outcome", ("route", "outcome")
        )
        self.audit_cost = Counter("nearhit_audit_cost_dollars_total", "Dollars spent on audits", ("route",))
        self.second_opinions = Counter(
            "nearhit_second_opinions_total",
            "Lookups with a neighbour that a second opinion could get served, by whether there was one",
            ("route", "outcome"),
        )
        self.drift_alarms = Counter(
            "nearhit_drift_alarms_total",
            "Times that the labels proved wrong more often than a route had learned, so that it forgot them",
            ("route",),
        )
        self.acceptance_threshold = Gauge(
            "nearhit_acceptance_threshold", "Score that a neighbour must reach to be served", ("route",)
        )
        self.wrong_hit_ratio = Gauge(
            "nearhit_wrong_hit_ratio", "Wrong semantic hits over all requests, from audits; NaN without any", ("route",)
        )
        self.wrong_hit_ratio_low = Gauge(
            "nearhit_wrong_hit_ratio_low", "Lower end of the 95 % interval of the wrong-hit ratio", ("route",)
        )
        self.wrong_hit_ratio_high = Gauge(
            "nearhit_wrong_hit_ratio_high", "Upper end of the 95 % interval of the wrong-hit ratio", ("route",)
        )
        self.max_wrong_hits = Gauge(
            "nearhit_max_wrong_hits", "Bound of the policy in force on the wrong-hit ratio", ("route",)
        )
        self.wrong_of_served_ratio = Gauge(
            "nearhit_wrong_of_served_ratio", "Wrong semantic hits over semantic hits; NaN without any audit", ("route",)
        )
        self.wrong_of_served_ratio_low = Gauge(
            "nearhit_wrong_of_served_ratio_low", "Lower end of the 95 % interval of wrong over served", ("route",)
        )
        self.wrong_of_served_ratio_high = Gauge(
            "nearhit_wrong_of_served_ratio_high", "Upper end of the 95 % interval of wrong over served", ("route",)
        )


class BackendMetrics:
    """Calls to backends, and to each of their addresses."""

    def __init__(self) -> None:
        backend, upstream = ("backend",), ("backend", "upstream")
        self.backend_requests = Counter(
            "nearhit_backend_requests_total", "Calls to a backend by outcome", ("backend", "outcome")
        )
        self.backend_seconds = Histogram("nearhit_backend_seconds", "Duration of whole answers of a backend", backend)
        self.backend_ttft_seconds = Histogram("nearhit_backend_ttft_seconds", "Time to a backend's first byte", backend)
        self.backend_inflight = Gauge("nearhit_backend_inflight", "Calls in flight to a backend", backend)
        self.backend_limit = Gauge("nearhit_backend_limit", "Calls that may be in flight to a backend now", backend)
        self.backend_queued = Gauge("nearhit_backend_queued", "Requests that wait for a place at a backend", backend)
        self.breaker_state = Gauge("nearhit_breaker_state", "Circuit breaker: 0 closed, 1 half-open, 2 open", backend)
        self.upstream_state = Gauge(
            "nearhit_upstream_state",
            "State of an address: 0 in service, 1 half-open, 2 open or ejected, 3 paused by Retry-After or rate limit",
            upstream,
        )
        self.upstream_inflight = Gauge("nearhit_upstream_inflight", "Calls in flight to an address", upstream)
        self.upstream_latency = Gauge(
            "nearhit_upstream_latency_ewma_seconds",
            "Time to the first byte by which addresses are compared, for the slowest kind of call",
            upstream,
        )
        self.retries = Counter(
            "nearhit_retries_total",
            "Calls sent again, or not sent again for lack of time or budget",
            ("backend", "outcome"),
        )
        self.input_tokens = Counter(
            "nearhit_input_tokens_total",
            "Input tokens that answers report, by whether the backend's prompt cache supplied them",
            ("backend", "source"),
        )
        self.prefix_picks = Counter(
            "nearhit_prefix_picks_total", "Upstreams picked by the prefix of the prompt", ("backend", "outcome")
        )
        self.hedges = Counter("nearhit_hedges_total", "Second requests sent to another upstream", ("outcome",))
        self.model_reloads = Counter("nearhit_model_reloads_total", "Reloads of dead models", ("backend", "outcome"))


class AccessMetrics:
    """Refused requests and the use of limits."""

    def __init__(self) -> None:
        self.load_level = Gauge(
            "nearhit_load_level",
            "Load of the encoder: 0 normal, 1 learning waits, 2 vectors dropped, 3 best pair only, 4 lookups skipped",
            (),
        )
        self.left_out = Counter("nearhit_left_out_total", "Work left out as the encoder was loaded", ("step",))
        for step in LEFT_OUT:
            self.left_out.add(step, amount=0)
        self.shed = Counter("nearhit_shed_total", "Requests refused to keep the gateway responsive", ("reason",))
        self.auth_failures = Counter("nearhit_auth_failures_total", "Credentials that were refused", ("port", "reason"))
        self.audit_errors = Counter("nearhit_audit_errors_total", "Lines of the audit trail that were lost", ("where",))
        self.key_lookups = Counter("nearhit_key_lookups_total", "API keys looked up in the store", ("outcome",))
        self.limited = Counter(
            "nearhit_limited_total",
            "Requests that a limit of the policy refused or sent to the lightest model",
            ("route", "limit"),
        )
        self.limits_local = Counter(
            "nearhit_limits_local_total",
            "Requests whose limits this gateway counted alone, without the store",
            ("route",),
        )
        self.limits_tokens = Counter(
            "nearhit_limits_tokens_total", "Tokens of calls on routes with limits, input and output", ("route",)
        )
        self.limits_cost = Counter(
            "nearhit_limits_cost_dollars_total", "Dollars of calls on routes with limits", ("route",)
        )
        self.tokens = Counter("nearhit_tokens_total", "Tokens of metered calls", ("route", "backend", "kind"))
        self.cost = Counter("nearhit_cost_dollars_total", "Dollars of metered calls", ("route", "backend"))


class JobMetrics:
    """Jobs, which are answered later, and their webhooks."""

    def __init__(self) -> None:
        self.jobs = Counter("nearhit_jobs_total", "Jobs by the outcome of their submissions and attempts", ("outcome",))
        self.jobs_held = Gauge("nearhit_jobs", "Jobs and webhooks of all gateways on the store", ("state",))
        self.job_bytes = Gauge("nearhit_jobs_bytes", "Bytes of the requests of unfinished jobs", ())
        self.job_oldest_seconds = Gauge("nearhit_jobs_oldest_seconds", "Age of the oldest unfinished job", ())
        self.job_wait_seconds = Histogram("nearhit_jobs_wait_seconds", "From accepting a job to its first attempt", ())
        self.job_seconds = Histogram("nearhit_jobs_seconds", "From accepting a job to its end", ("status",))
        self.job_webhooks = Counter("nearhit_jobs_webhooks_total", "Webhook deliveries by outcome", ("outcome",))


class StoreMetrics:
    """The health of the store."""

    def __init__(self) -> None:
        self.store_errors = Counter("nearhit_store_errors_total", "Store operations that failed or took too long", ())
        self.unreadable_records = Counter(
            "nearhit_unreadable_records_total", "Stored records that were damaged, or of another version: misses", ()
        )
        self.store_restarts = Counter(
            "nearhit_store_restarts_total", "Embedded stores that ended by themselves and were started again", ()
        )
        self.store_up = Gauge("nearhit_store_up", "1 if the store answered the last check", ())


class ProcessMetrics:
    """The gateway itself: its event loop, its policy, its traffic log and its traces."""

    def __init__(self) -> None:
        self.loop_lag_seconds = Histogram(
            "nearhit_loop_lag_seconds", "Lateness of the event loop, measured every 10 ms", ()
        )
        self.loop_stalls = Counter(
            "nearhit_loop_stalls_total",
            "Stalls of the event loop of 20 ms and more, by cause",
            ("cause",),
        )
        self.spans = Counter("nearhit_spans_total", "Spans of traces by outcome", ("outcome",))
        for outcome in SPAN_OUTCOMES:  # all from the start, so that the exporter's thread adds no key during a scrape
            self.spans.add(outcome, amount=0)
        self.policy_reload_ok = Gauge(
            "nearhit_policy_last_reload_successful", "1 if the policy in force is the one on disk", ()
        )
        self.policy_info = Gauge("nearhit_policy_info", "The policy in force", ("hash",))


class ReplicationMetrics:
    """How a gateway follows the changes of the others on its store."""

    def __init__(self) -> None:
        self.lag_entries = Gauge(
            "nearhit_replication_lag_entries", "Changes in the store that this gateway has not yet read", ()
        )
        self.lag_seconds = Gauge(
            "nearhit_replication_lag_seconds", "Age of the oldest change that this gateway may not know", ()
        )
        self.delay_seconds = Histogram(
            "nearhit_replication_delay_seconds", "From a change in the store until it is in force here", ()
        )
        self.changes = Counter(
            "nearhit_replication_changes_total", "Changes of other gateways that were read", ("kind",)
        )
        self.rebuilds = Counter(
            "nearhit_replication_rebuilds_total",
            "Comparisons with the whole store, because changes were gone before they were read",
            ("outcome",),
        )
