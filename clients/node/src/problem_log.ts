// Reports a problem when it begins and when another one follows, not each time that it is met.

export class ProblemLog {
  private readonly current = new Map<string, string>();

  constructor(
    private readonly prefix: string,
    /** Passes an error on; answers whether something listens. */
    private readonly pass: (error: Error) => boolean,
  ) {}

  /** Something does not work; `undefined` when it works. */
  report(what: string, error: Error | undefined): void {
    if (error === undefined) {
      if (this.current.size > 0) this.current.delete(what);
      return;
    }
    const known = [...this.current.values()].includes(error.message);
    this.current.set(what, error.message);
    if (!known && !this.pass(error)) console.error(`taskyard: ${this.prefix}: ${error.message}`);
  }
}
