// The version of the package, which a test compares with package.json.

export const VERSION = "0.1.0";
