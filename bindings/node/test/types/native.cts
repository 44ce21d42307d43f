import trunkline = require('trunkline');

export const client: trunkline.Client = new trunkline.Client();
