/** What the request is, by name. */
export type Attributes = Readonly<Record<string, string>>;

/** How one limit stands. Times are seconds; null: no wait helps. `raw` is all that the service said. */
export interface Result {
  readonly name: string;
  readonly allowed: boolean;
  readonly quota: number;
  readonly remaining: number;
  readonly retryAfter: number | null;
  readonly resetAfter: number | null;
  readonly raw: Readonly<Record<string, unknown>>;
}

interface Decided {
  /** How each limit stands. */
  readonly results: readonly Result[];
  /** The limits that are used beyond their soft threshold. */
  readonly warnings: readonly string[];
  /** Seconds to hold an allowed request back. */
  readonly delay: number;
  /** To be given to finish. */
  readonly permit: number | null;
  /** Header fields for the server that serves the request. */
  readonly tags: Readonly<Record<string, string>>;
  /** Seconds; 0 when it is allowed, null when no wait helps. */
  readonly retryAfter: number | null;
  /** Names of the limits that refuse. */
  readonly violated: readonly string[];
  /** Why they refuse: a word such as rate_exceeded, and a sentence. */
  readonly reason: string;
  readonly detail: string;
  /** The status for your own client, and where to redirect it. */
  readonly status: number;
  readonly location: string;
  /** For your own client, where a limit has an answer of its own; body is null where it has none. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string | null;
  readonly contentType: string;
  /** A take with the same idempotencyKey was charged before, and this one was charged nothing. */
  readonly repeated: boolean;
  /** Never to be called. A decision is an object and so always true: by this the compiler reports `if (decision)`. */
  (this: never): never;
}

/** The request may go on. */
export interface Allowed extends Decided {
  readonly allowed: true;
}

/** The request is refused. */
export interface Refusal extends Decided {
  readonly allowed: false;
  readonly permit: null;
}

/** Whether the request may go on, which `allowed` says: a decision itself is always true. */
export type Decision = Allowed | Refusal;

/** What to answer your own client: the status, header fields such as RateLimit and Retry-After, and the body of a refusal. */
export function response(decision: Decision): { status: number; headers: Record<string, string>; body: string };

/** There is no decision. */
export class StintError extends Error {
  /** The HTTP status, 0 where no answer came. */
  readonly status: number;
  /** What to do. */
  readonly hint: string;
  constructor(message: string, status?: number, hint?: string, cause?: unknown);
}

/** Thrown only where a refusal cannot be returned: by wait and reserving. */
export class Refused extends StintError {
  readonly decision: Decision;
  constructor(decision: Decision, message: string);
}

/** What was reserved of limits, or the refusal. */
export class Reservation {
  private constructor();
  readonly decision: Decision;
  /** Empty when it was refused. */
  readonly id: string;
  readonly reserved: number;
  /** An RFC 3339 time. */
  readonly ends: string;
  readonly state: "open" | "committed" | "released" | "expired" | "";
  readonly raw: Readonly<Record<string, unknown>>;
  /** The most that renew has reported. */
  readonly used: number;
  /** Says what was used so far; it lives on for ttl seconds, or as long as before. */
  renew(used: number, options?: { ttl?: number; signal?: AbortSignal }): Promise<this>;
  /** Says what was used. The rest comes back; what is over is charged. Again with the same number is harmless. */
  commit(actual: number, options?: { signal?: AbortSignal }): Promise<this>;
  /** Gives all back. */
  release(options?: { signal?: AbortSignal }): Promise<this>;
}

export interface ClientOptions {
  /** Of an identity with the role take. */
  token?: string;
  /** Seconds for each call, 10 by default. The time for which wait is held in line comes on top. */
  timeout?: number;
  /** How many connections there are at most, 100 by default; calls beyond that wait for one of them. */
  maxSockets?: number;
  /** Options of node:tls, such as `ca`, `cert` and `key`. */
  tls?: Readonly<Record<string, unknown>>;
  /** Sends the requests, in place of the connections that the client keeps in Node. It may be the global one, or that of undici. */
  fetch?: Fetch;
}

/** What the client needs of fetch. */
export type Fetch = (
  url: string,
  init: { method: string; headers: Record<string, string>; redirect: "manual"; signal: AbortSignal; body?: string },
) => Promise<{ readonly status: number; readonly headers: { get(name: string): string | null } & Iterable<[string, string]>; text(): Promise<string> }>;

export interface ReserveOptions {
  /** What is reserved. Without it the service estimates it where it is told how; else it is 1. */
  cost?: number;
  /** Seconds, 1 to 3600, 60 by default. */
  ttl?: number;
  /** The most that the request can cost, where costs are estimated. */
  declared?: number;
  /** What is reserved stays charged when ttl is over. */
  chargeExpired?: boolean;
  signal?: AbortSignal;
}

export interface UsageQuery {
  customer?: string;
  /** NAME=VALUE, one for each attribute. */
  key?: string | readonly string[];
  limit?: string;
  /** Such as 2026-11-01 or 2026-11, in UTC. */
  from?: string;
  to?: string;
  by?: "hour" | "day" | "month" | "total";
  timezone?: string;
}

export interface UsageRow {
  readonly limit: string;
  readonly key: Readonly<Record<string, string>>;
  /** An RFC 3339 time. */
  readonly start: string;
  readonly used: number;
  readonly taken: number;
  readonly returned: number;
}

/** Rows of what was used, and the members of the cluster whose usage is missing in them. */
export type UsageRows = UsageRow[] & { readonly incomplete: readonly string[] };

/** A client of one service. Calls may overlap. */
export class Client {
  /** baseURL is such as http://127.0.0.1:8080, or unix:/run/stint.sock for a service that listens on a socket. */
  constructor(baseURL: string | URL, options?: ClientOptions);
  /**
   * Takes cost from every limit that the request meets, or from none. A cost of 0 only looks. A limit with
   * on_exceed: queue holds the answer back for half of the timeout at most, and 5 s.
   *
   * idempotencyKey names this take, so that it can be sent again when its answer was lost: one with the same key,
   * attributes and cost as one that was admitted within 10 minutes is admitted and charged nothing. Use a new text for
   * each take, such as a UUID. With it the client sends a call again itself whose connection broke, within the timeout;
   * with fetch, which does not tell them apart, also one that found no service.
   */
  take(attributes: Attributes, options?: { cost?: number; countRefused?: boolean; idempotencyKey?: string; signal?: AbortSignal }): Promise<Decision>;
  /**
   * Takes, and waits for the turn: in line at the service for up to 5 s, else by sleep. Those who wait at one
   * service for the same bucket are served in the order in which they came. A turn that is further away, or at
   * a limit for which there is no line, is waited for by sleeping for retryAfter and asking again. Throws
   * Refused at once where no wait helps, or where it would be longer than what is left of timeout (seconds).
   * idempotencyKey is that of take.
   */
  wait(
    attributes: Attributes,
    options?: {
      cost?: number;
      timeout?: number;
      idempotencyKey?: string;
      signal?: AbortSignal;
      sleep?: (seconds: number, signal?: AbortSignal) => Promise<unknown>;
    },
  ): Promise<Decision>;
  /** Gives back the permit of a request in flight, with the attributes of its take. */
  finish(attributes: Attributes, permit: number, options?: { signal?: AbortSignal }): Promise<void>;
  /** Says which limits the request meets, why, and how full they are. Takes nothing. */
  explain(attributes: Attributes, options?: { cost?: number; signal?: AbortSignal }): Promise<Record<string, unknown>>;
  /** Takes an estimate before the cost is known. A refusal is a Reservation whose decision says so. */
  reserve(attributes: Attributes, options?: ReserveOptions): Promise<Reservation>;
  /**
   * Reserves and calls body. Where that ends without a commit, also by an error, what renew has reported last is
   * committed; without a renew all comes back. Throws Refused in place of a refusal.
   */
  reserving<T>(attributes: Attributes, options: ReserveOptions, body: (reservation: Reservation) => T | Promise<T>): Promise<T>;
  /** Rows of what was used. */
  usage(query?: UsageQuery, options?: { signal?: AbortSignal }): Promise<UsageRows>;
  /** Closes the connections, those of calls when they end. The next call opens another one. */
  close(): Promise<void>;
}
