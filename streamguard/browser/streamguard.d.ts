// Types of streamguard.js. Times are milliseconds where a name ends in Ms.

export type Verdict = "complete" | "truncated" | "corrupt" | "gap" | "failed" | "unverified";
export type WireName = "sse" | "ndjson" | "binary";
export type DialectName = "native" | "openai" | "openai-responses" | "anthropic" | "ui" | "ag-ui" | "raw";
export type CorruptCode =
  | "grammar" | "sid" | "seq" | "length" | "checksum" | "guard_stripped" | "reframed" | "too_large";
export type Usage = Record<string, unknown>;

/** A dialect and its settings; those of `raw` say what proves the end of a stream without cursors. */
export interface DialectSettings {
  name: DialectName;
  /** A server's known departures from its API: `transformers` sends no `[DONE]`. */
  profile?: "openai" | "vllm" | "sglang" | "llama.cpp" | "ollama" | "transformers" | "litellm";
  /** `asgi` and `endless`: the end of the body does; `known`: `provider` for events of an API that is known, else `asgi`.
   * No browser tells how a body was framed. */
  end?: "provider" | "known" | "asgi" | "endless" | ((name: string | null, data: string) => boolean);
}

/** What the end of a stream says of its failure. */
export interface Failure {
  readonly code: string;
  readonly message: string;
  readonly retryable: boolean;
  readonly resumable: boolean;
}

/** A position in a stream. `String(cursor)` is as it travels. */
export class Cursor {
  constructor(sid: string, seq: number, offset: number, crc: number, status?: string | null);
  readonly sid: string;
  readonly seq: number;
  readonly offset: number;
  readonly crc: number;
  readonly status: string | null;
  /** Throws for anything outside the grammar. */
  static parse(text: string): Cursor;
  /** The name of a stream before anything was sent. */
  static zero(sid: string): Cursor;
  /** The cursor that a text is, or null. */
  static in(text: string): Cursor | null;
  equals(other: Cursor): boolean;
  toString(): string;
}

/** What is more than text: a tool call, a result, reasoning, a refusal, an image, or another that a provider has. */
export interface Block {
  /** `tool_call` is one whose `arguments` are a JSON object; one whose are not, or nested deeper than 256, or with an
   * integer of more than 4,300 digits, is an `invalid_tool_call`. */
  readonly type: string;
  readonly [field: string]: any;
}

/** One frame as it is handed out. */
export class AnswerFrame {
  /** Its number; 0 where there are no cursors. */
  readonly seq: number;
  readonly name: string | null;
  /** Its data in UTF-8. */
  readonly raw: Uint8Array;
  readonly data: string;
  /** The text of choice 0. */
  readonly text: string;
  /** A block of `native` (`{type, …}`), a provider's event, or null where it is text alone. */
  readonly item: Record<string, any> | null;
  /** The text of every choice, where a provider's event has several. */
  readonly texts: Record<number, string> | null;
  /** The blocks that it makes whole. */
  readonly blocks: readonly Block[];
}

/** What was read, and what is known about it. `String(receipt)` says it in a line. */
export class Receipt {
  readonly verdict: Verdict;
  readonly status: string | null;
  readonly code: string | null;
  /** Frames whose checks held, and bytes of their data. */
  readonly frames: number;
  readonly bytes: number;
  readonly crc: number | null;
  readonly cursor: Cursor | null;
  readonly finishReason: string | Record<string, string> | null;
  readonly usage: Usage | null;
  readonly failure: Failure | null;
  /** What proved the end of a stream without cursors. */
  readonly provedBy: "marker+reason" | "marker" | "framing" | null;
  /** Further connections in which the stream went on, and frames that came again in them and were dropped. */
  readonly resumes: number;
  readonly duplicates: number;
  /** Of an answer; from its request on. */
  readonly firstFrameMs?: number | null;
  readonly longestGapMs?: number | null;
  readonly durationMs?: number;
  toString(): string;
}

/** What all errors of this module are, save those of `fetch` itself and what an AbortSignal says. */
export class StreamGuardError extends Error {}
/** This side broke the rules. */
export class LocalProtocolError extends StreamGuardError {}
/** The answer was closed, or handed out already. */
export class StreamClosed extends LocalProtocolError {}
/** The other side did. */
export class RemoteProtocolError extends StreamGuardError {}
/** One frame above `maxFrame`, in bytes. */
export class FrameTooLarge extends RemoteProtocolError {
  readonly code: "too_large";
  readonly size: number;
  readonly limit: number;
}
/** The server answered with something that is no stream. */
export class UnexpectedResponse extends RemoteProtocolError {
  readonly status: number;
  readonly contentType: string;
  /** Its first 64 kB. */
  readonly body: string;
  readonly retryAfterMs: number | null;
}
/** A time limit passed. */
export class LimitExceeded extends RemoteProtocolError {
  readonly limit: "firstByteMs" | "livenessMs" | "stallMs";
  readonly milliseconds: number;
  readonly cursor: Cursor | null;
}
/** The stream was read and is not complete. */
export class VerdictError extends RemoteProtocolError {
  readonly code: string | null;
  /** The last cursor whose checks held. */
  readonly cursor: Cursor | null;
  /** The text before the end. */
  readonly received: string;
}
/** The bytes ended before the terminal frame. */
export class TruncatedStream extends VerdictError {
  readonly detail: string;
}
/** A frame failed its checks; `code` names the first that did. */
export class CorruptStream extends VerdictError {
  readonly code: CorruptCode;
  readonly detail: string;
}
/** Frames are missing: `expected` was to come. */
export class StreamGap extends VerdictError {
  readonly expected: number;
  readonly got: number | null;
  readonly detail: string;
}
/** The stream's own end says that it did not complete. */
export class FailedStream extends VerdictError {
  readonly status: string;
  readonly failure: Failure | null;
}

export interface VerifierOptions {
  wire?: WireName;
  /** `null`: `native` if the stream says so, else a provider's events. */
  dialect?: DialectName | DialectSettings | null;
  /** The cursor zero that the header promised. */
  zero?: Cursor | string | null;
  /** Accept a last frame whose checks hold though its line end is missing. */
  lenient?: boolean;
  maxFrame?: number;
}

/** Reads one stream from its bytes, with no network and no clock. Nothing is handed out after a fault. */
export class StreamVerifier {
  constructor(options?: VerifierOptions);
  readonly state: "unopened" | "open" | "ended" | "parted" | "closed" | "cut";
  /** `null` until it is known. */
  readonly verdict: Verdict | null;
  readonly frames: number;
  readonly status: string | null;
  readonly finishReason: string | Record<string, string> | null;
  readonly usage: Usage | null;
  readonly failure: Failure | null;
  readonly provedBy: "marker+reason" | "marker" | "framing" | null;
  readonly parting: string | null;
  readonly resumes: number;
  readonly beats: number;
  readonly duplicates: number;
  readonly error: RemoteProtocolError | null;
  readonly cursor: Cursor | null;
  readonly retry: number | null;
  readonly receipt: Receipt;
  /** The frames that `bytes` complete and that hold. */
  feed(bytes: Uint8Array): AnswerFrame[];
  /** End of bytes; `clean` says whether the connection's own framing ended as it should. */
  end(clean?: boolean): AnswerFrame[];
  /** Read on behind `cursor` in another connection. */
  resume(wire?: WireName, zero?: Cursor | string | null): void;
  /** End the reading with `error`. */
  giveUp(error: RemoteProtocolError): void;
}

/** What is waited for at most, `null` for no limit, and how much is kept. There is no limit on the whole. */
export interface Limits {
  /** From the request to the head of its answer. Default 60,000. */
  firstByteMs?: number | null;
  /** For any byte, heartbeats included. Default 45,000. */
  livenessMs?: number | null;
  /** For a frame, while only heartbeats come. Default null. */
  stallMs?: number | null;
  /** Characters kept for `received` and `read`. Default 64 Mi. */
  maxReceived?: number;
}

/** How often a stream is resumed, and how fast. */
export interface ResumePolicy {
  /** How many in a row may bring no new frame. Default 5. */
  attempts?: number;
  /** The bound of the first wait; it doubles with each attempt in a row. Default 500. */
  baseMs?: number;
  /** The bound of every wait. Default 30,000. */
  maxWaitMs?: number;
}

/** Options of `fetch`, and of the reading. */
export interface StreamOptions extends RequestInit {
  /** A body, as JSON. */
  json?: unknown;
  dialect?: DialectName | DialectSettings | null;
  lenient?: boolean;
  limits?: Limits;
  /** Bytes of one frame's data. Default 16 MiB. */
  maxFrame?: number;
  /** `null`: where the server names an address for that; `true` or a policy: a GET at its own address too; `false`: never. */
  resume?: boolean | ResumePolicy | null;
  fetch?: typeof globalThis.fetch;
}

/** An answer as it comes. Each loop ends only if the answer is whole; else it throws. */
export class Answer implements AsyncIterable<string> {
  private constructor();
  /** The response to the request itself. */
  readonly response: Response;
  /** What is known so far; final once the answer was read to its end. */
  readonly receipt: Receipt;
  /** The text handed out so far, up to `limits.maxReceived` characters. */
  readonly received: string;
  /** The last cursor whose checks held. */
  readonly cursor: Cursor | null;
  /** The text, as it comes. Leaving the loop early closes the answer. */
  text(): AsyncIterableIterator<string>;
  /** Every frame but the terminal, which is one where it makes blocks whole that nothing else did. */
  frames(): AsyncIterableIterator<AnswerFrame>;
  /** The blocks between the text, which goes to `received`: each when it is whole, of however many pieces. What
   * nothing closed is handed out by a good end, a call whose arguments are not whole as `invalid_tool_call`. */
  blocks(): AsyncIterableIterator<Block>;
  [Symbol.asyncIterator](): AsyncIterableIterator<string>;
  /** The whole text, what was iterated before included. */
  read(): Promise<string>;
  /** Read no further. */
  close(): void;
  /** Have the server end the stream; whether it did. */
  cancel(): Promise<boolean>;
}

/** Send a request and read the stream that answers it, verified. */
export function stream(url: string | URL, options?: StreamOptions): Promise<Answer>;

/** CRC-32 as in zlib, going on from `crc`. */
export function crc32(bytes: Uint8Array, crc?: number): number;

/** What a `Streamguard` header promises; null if nothing that can be understood. */
export function parseAnswer(
  header: string | null,
): { cursor: Cursor; dialect: string; wire: string; resume: string | null } | null;

export const MAX_FRAME: number;
