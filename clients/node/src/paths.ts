// The paths and queries of requests.

/** The path of a tube, or of something below it. */
export function tubePath(tube: string, ...segments: string[]): string {
  return ["/v1/tubes", ...[tube, ...segments].map(encodeURIComponent)].join("/");
}

/** The query of a URL, with its question mark; empty without fields. */
export function queryText(fields: object): string {
  const given = Object.entries(fields).filter(([, value]) => value !== undefined && value !== null);
  const text = new URLSearchParams(given.map(([name, value]): [string, string] => [name, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}
