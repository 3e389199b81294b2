/** The page's connection to the broker: opened with what the user gave, again with another login, and closed. */

import { type Signal, signal } from "@preact/signals";
import type { Link, LinkStatus, Message, MqinferError } from "mqinfer-client";
import { cut, PACKET_BYTES } from "./bounds.js";
import type { Platform } from "./platform.js";
import type { Connection } from "./types.js";

export interface ConnectionOptions {
  /** Address of the WebSocket; it may be relative to the page's. */
  readonly address: string;
  readonly filters: readonly string[];
  /** Whether the user may be asked for a login. */
  readonly asksLogin: boolean;
  onMessage(message: Message): void;
  /** Called with each change. */
  onStatus(status: Connection["status"]): void;
}

export class BrokerConnection {
  readonly state: Signal<Connection> = signal({ status: "connecting", reason: "", needsLogin: false });
  readonly #platform: Platform;
  readonly #options: ConnectionOptions;
  #attempt: AbortController | null = null;
  #refused: readonly string[] = [];

  constructor(platform: Platform, options: ConnectionOptions) {
    this.#platform = platform;
    this.#options = options;
  }

  /** Connect, with a login where one is given; a connection that is there is closed first. */
  open(login?: { readonly user: string; readonly password: string }): void {
    this.close();
    const attempt = new AbortController();
    this.#attempt = attempt;
    this.#report(attempt, { status: "connecting", reason: "", needsLogin: false });
    void this.#run(attempt, login);
  }

  /** Return whether the broker refuses this login to read a filter. */
  isRefused(filter: string): boolean {
    return this.#refused.includes(filter);
  }

  close(): void {
    this.#attempt?.abort();
    this.#attempt = null;
  }

  /** Return why a login is asked for: nothing is wrong before one was given. */
  #refusal(message: string, isLogin: boolean, login: unknown): string {
    if (!isLogin || !this.#options.asksLogin) return message;
    return login ? "wrong name or password" : "";
  }

  async #run(attempt: AbortController, login?: { readonly user: string; readonly password: string }): Promise<void> {
    try {
      const link = await this.#platform.openLink({
        url: this.#platform.resolve(this.#options.address),
        name: "dashboard",
        maxPacketSize: PACKET_BYTES,
        signal: attempt.signal,
        onStatus: (status) =>
          this.#report(attempt, { ...status, reason: this.#refusal(status.reason, status.needsLogin, login) }),
        ...login,
      });
      if (attempt.signal.aborted) return await link.close();
      attempt.signal.addEventListener("abort", () => void link.close());
      await this.#subscribe(attempt, link, login !== undefined);
    } catch (error) {
      const { code, message } = error as MqinferError;
      const needsLogin = code === "not_authorized";
      this.#report(attempt, { status: "refused", reason: this.#refusal(message, needsLogin, login), needsLogin });
    }
  }

  async #subscribe(attempt: AbortController, link: Link, hasLogin: boolean): Promise<void> {
    const take = (message: Message) => {
      if (!attempt.signal.aborted) this.#options.onMessage(message);
    };
    const answers = this.#options.filters.map((filter) =>
      link.subscribe(filter, 0, take).then(
        () => "",
        () => filter,
      ),
    );
    const refused = (await Promise.all(answers)).filter(Boolean);
    this.#refused = refused;
    if (refused.length === 0) return;
    const isAll = refused.length === answers.length;
    const reason = `the broker refuses this login to read ${refused.join(", ")}`;
    this.#report(attempt, {
      status: isAll ? "refused" : "connected",
      reason: hasLogin ? reason : this.#refusal(reason, isAll, null),
      needsLogin: isAll,
    });
  }

  #report(attempt: AbortController, { status, reason, needsLogin }: LinkStatus): void {
    if (attempt.signal.aborted) return;
    this.state.value = { status, reason: cut(reason), needsLogin: needsLogin && this.#options.asksLogin };
    this.#options.onStatus(status);
  }
}
