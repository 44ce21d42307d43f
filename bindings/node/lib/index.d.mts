export * from './index.js';
import * as trunkline from './index.js';
export default trunkline;
